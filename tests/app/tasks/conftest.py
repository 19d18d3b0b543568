"""A model without weights."""

from __future__ import annotations

from typing import Any

import pytest

from app.inference.contract import ServedModel


@pytest.fixture
def served(backend: Any) -> ServedModel:
    """A classifier of NEGATIVE and POSITIVE over 64 positions."""
    model: ServedModel = backend.models["sentiment"]
    return model
