"""The errors of training. Messages name the file, row or key, and the remedy.

TrainingError
├── RecipeError      a recipe or an override is invalid
├── SourceError      text cannot be read
│   └── MissingTextError   text is missing
├── CorpusError      a prepared corpus is missing, broken or of another vocabulary
└── RunError         a run cannot go on or be resumed
"""

from __future__ import annotations

from model.errors import BertError


class TrainingError(BertError):
    """Base of every error that `training` raises on purpose."""


class RecipeError(TrainingError):
    """A recipe or an override is invalid."""


class SourceError(TrainingError):
    """Text cannot be read. The message names the file, and the row or column."""


class MissingTextError(SourceError):
    """Text is missing. Results that were prepared from it can be used without it."""


class CorpusError(TrainingError):
    """A prepared corpus is missing, broken or of another vocabulary."""


class RunError(TrainingError):
    """A run cannot go on or be resumed."""
