"""What the inference process sends to the process that serves."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from app.errors import BackendDiedError, InferenceError, OutOfMemoryError
from app.inference.process_main import make_picklable
from model.errors import CheckpointError


class UnpicklableError(Exception):
    """Wants two arguments, and keeps one."""

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(f"{reason} {number}")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("no room"), OutOfMemoryError),
        (BackendDiedError("device fault"), BackendDiedError),
        (InferenceError("not finite"), InferenceError),
        (CheckpointError(Path("weights"), "is missing"), CheckpointError),
        (UnpicklableError("fault", 7), RuntimeError),
        (torch.OutOfMemoryError("no room for the weights"), RuntimeError),  # to know it is to load torch
    ],
)
def test_errors_arrive_as_what_they_are_or_at_least_in_words(error: Exception, kind: type[Exception]) -> None:
    arrived = pickle.loads(pickle.dumps(make_picklable(error)))
    assert type(arrived) is kind
    assert str(error) in str(arrived)
