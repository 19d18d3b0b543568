"""A limit on bytes, shared by requests."""

from __future__ import annotations

import pytest

from app.errors import TooManyBytesError
from app.observability.metrics import Metrics
from app.scheduling.byte_budget import ByteBudget


def test_bytes_beyond_the_limit_are_refused_until_others_end() -> None:
    budget = ByteBudget(300_000, Metrics(), free=65_536, what="bytes are being uploaded")
    with budget.reserve(200_000):
        with pytest.raises(TooManyBytesError, match="too many bytes are being uploaded"), budget.reserve(100_001):
            raise AssertionError
        with budget.reserve(100_000), budget.reserve(65_536):
            assert budget.reserved == 300_000
        assert budget.reserved == 200_000
    with budget.reserve(1_000_000):  # alone, any size may come
        assert budget.reserved == 1_000_000
    assert budget.reserved == 0
