"""Ranks: what a single process is. Several are in tests/training/loop/test_distributed.py."""

from __future__ import annotations

import pytest
from torch import nn

from training.runtime.distributed import DistContext, distributed, local_world_size, world_size


def test_distributed_of_a_single_process_is_the_main_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert (world_size(), local_world_size()) == (1, 1)
    with distributed() as dist:
        assert dist == DistContext()
        assert dist.is_main


def test_dist_context_of_a_single_process_communicates_with_itself() -> None:
    dist, layer = DistContext(), nn.Linear(2, 2)
    assert dist.all_reduce_scalars([1.0, 2.0]) == [1.0, 2.0]
    assert dist.all_gather("value") == ["value"]
    dist.check_equal({"seed": 1})
    assert dist.wrap(layer) is layer


def test_dist_context_of_rank_1_is_not_the_main_rank() -> None:
    assert not DistContext(rank=1, world_size=2).is_main


def test_world_size_is_that_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (world_size(), local_world_size()) == (4, 2)
