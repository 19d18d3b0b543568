"""What can go wrong while training, in words that name the file, row or key and the remedy.

TrainingError
├── RecipeError      a recipe or an override that makes no sense
├── SourceError      text that cannot be read
│   └── MissingTextError   text that is not here
├── CorpusError      a prepared corpus that is missing, broken or of another vocabulary
└── RunError         a run that cannot go on or be resumed
"""

from __future__ import annotations

from model.errors import BertError


class TrainingError(BertError):
    """Base of every error that `training` raises on purpose."""


class RecipeError(TrainingError):
    """A recipe or an override that makes no sense."""


class SourceError(TrainingError):
    """Text that cannot be read: names the file, and the row or column."""


class MissingTextError(SourceError):
    """Text that is not here. What was prepared from it can be used without it."""


class CorpusError(TrainingError):
    """A prepared corpus that is missing, broken or of another vocabulary."""


class RunError(TrainingError):
    """A run that cannot go on or be resumed."""
