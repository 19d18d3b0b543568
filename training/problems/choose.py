"""The problem of a recipe or of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from training.problems.base import Problem
from training.problems.multi_label import MultiLabel
from training.problems.regression import Regression
from training.problems.single_label import SingleLabel
from training.recipe import MULTI_LABEL, REGRESSION, SINGLE_LABEL

PROBLEMS: dict[str, type[Problem]] = {SINGLE_LABEL: SingleLabel, MULTI_LABEL: MultiLabel, REGRESSION: Regression}


def problem_of(problem_type: str | None, names: Sequence[str]) -> Problem:
    """The problem with these outputs. None is a single label, the default of checkpoints."""
    return PROBLEMS[problem_type or SINGLE_LABEL](tuple(names))
