"""Naive Bayes weights of features, as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin


class LogCountRatio(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    """Multiplies each feature by the log of how much more often it occurs in texts of a label than in others."""

    def fit(self, features: Any, labels: Any) -> LogCountRatio:
        """Learn the ratios, with one added to each count: features (texts, words), labels (texts,) 0 or 1."""
        positive = np.asarray(labels) > 0
        ours, others = (np.asarray(features[rows].sum(0)).ravel() + 1 for rows in (positive, ~positive))
        self.ratio_ = np.log(ours / ours.sum()) - np.log(others / others.sum())
        return self

    def transform(self, features: Any) -> Any:
        """(texts, words) -> (texts, words)"""
        return features.multiply(self.ratio_[None]).tocsr()
