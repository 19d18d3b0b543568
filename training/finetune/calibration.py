"""Temperature of a classifier, which calibrates its scores (Guo et al. 2017, section 4.2), and its thresholds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from model.heads import BertForSequenceClassification
from training.metrics.classification import Answers

MIN_RIGHT_AND_WRONG = 5
"""Minimum number of right, and of wrong, answers on dev: with none wrong, the lowest temperature always wins."""

MAX_SOURCE_TEXTS = 1000
"""Maximum weight of a source in texts, because the best temperature of the largest source need not fit the others."""

TEMPERATURES = torch.logspace(-1, 1, 401, base=5.0).tolist()
"""Candidates from 0.2 to 5; one of them is 1."""

logger = logging.getLogger(__name__)


def calibrate(model: BertForSequenceClassification, answers: Mapping[str, Answers]) -> float:
    """Divide the logits by the temperature with the lowest loss on dev, and choose the thresholds of several labels.

    The temperature is written into the last layer's weights, so every program that loads them has calibrated scores,
    and the thresholds into the configuration. Nothing changes if dev is too small, or the problem is a regression. The
    loss alone decides about the temperature, because it is a proper scoring rule: the calibration error of few texts is
    mostly that of its bins.

    Args:
        answers: the model's answers to each source of dev.

    Returns:
        The temperature; 1 if nothing changed.
    """
    found = [a.problem.decisions(a.scores, a.targets) for a in answers.values()]
    decisions = [is_right for decided in found if decided for is_right in decided[1].tolist()]
    if not decisions:
        return 1.0
    right = sum(decisions)
    if min(right, len(decisions) - right) < MIN_RIGHT_AND_WRONG:
        logger.warning(
            f"scores are not calibrated: {right} of {len(decisions)} answers on dev are right, and at least "
            f"{MIN_RIGHT_AND_WRONG} must be right and as many wrong"
        )
        return 1.0
    weights = [min(len(a.targets), MAX_SOURCE_TEXTS) for a in answers.values()]

    def loss(temperature: float) -> float:
        losses = [replace(a, logits=a.logits / temperature).loss for a in answers.values()]
        return float(np.average(losses, weights=weights))

    temperature: float = min(TEMPERATURES, key=loss)
    divide_logits(model, temperature)
    calibrated = [replace(a, logits=a.logits / temperature) for a in answers.values()]
    scores, targets = (torch.cat([getattr(a, name) for a in calibrated]) for name in ("scores", "targets"))
    model.config = model.config.replace(thresholds=[*calibrated[0].problem.tuned(scores, targets).thresholds] or None)
    logger.info("temperature %.3f: loss on dev %.4f before, %.4f after", temperature, loss(1.0), loss(temperature))
    return temperature


@torch.no_grad()
def divide_logits(model: BertForSequenceClassification, temperature: float) -> None:
    """Write a temperature into the last layer's weights."""
    model.classifier.weight.div_(temperature)
    model.classifier.bias.div_(temperature)
