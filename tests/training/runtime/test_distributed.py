"""Ranks: what a single process is. Several are in tests/training/loop/test_distributed.py."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch import nn

from tests.ports import free_port
from tests.training.commands import environment_of, set_ranks
from training.errors import RunError
from training.runtime import distributed as runtime
from training.runtime.distributed import DistContext, distributed, launched

ALL = {*environment_of(0, 2, per_node=1)}


@pytest.mark.parametrize("environment", [{}, dict.fromkeys(ALL, ""), environment_of(0, 1), {"WORLD_SIZE": "1"}])
def test_distributed_of_a_single_process_is_the_main_rank(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    set_ranks(monkeypatch, environment)
    with distributed() as dist:
        assert dist == DistContext()
        assert dist.is_main


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ({}, DistContext(5, 8, 0, 1)),  # Kubeflow: a process on each node
        ({"LOCAL_WORLD_SIZE": "4"}, DistContext(5, 8, 1, 4)),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, DistContext(5, 8, 3, 4)),
        ({"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}, DistContext(5, 8, 0, 1)),
    ],
)
def test_launched_has_the_place_on_the_node_by_default(
    monkeypatch: pytest.MonkeyPatch, local: dict[str, str], expected: DistContext
) -> None:
    set_ranks(monkeypatch, environment_of(5, 8) | local)
    assert launched() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: ""}, f"{name} is missing: set RANK, ")
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        ),
        *(({name: "abc"}, f"{name} is 'abc': set it to a number from ") for name in sorted(ALL - {"MASTER_ADDR"})),
        ({"RANK": "-1"}, "RANK is '-1': set it to a number from 0 on"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0': set it to a number from 1 on"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is '0': set it to a number from 1 on"),
        ({"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2: the first rank is 0"),
    ],
)
def test_launched_names_the_variable_that_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], message: str
) -> None:
    set_ranks(monkeypatch, environment_of(0, 2) | changes)
    with pytest.raises(RunError, match=f"^the environment variable {message}"):
        launched()


def test_distributed_without_the_first_rank_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_ranks(monkeypatch, environment_of(1, 2, port=free_port()))
    monkeypatch.setattr(runtime, "TIMEOUT", timedelta(seconds=1))
    with pytest.raises(RunError, match="another rank ended or cannot be reached"), distributed():
        pass


def test_dist_context_of_a_single_process_communicates_with_itself() -> None:
    dist, layer = DistContext(), nn.Linear(2, 2)
    assert dist.all_reduce_scalars([1.0, 2.0]) == [1.0, 2.0]
    assert dist.all_gather("value") == ["value"]
    dist.check_equal({"seed": 1})
    assert dist.wrap(layer) is layer


def test_dist_context_of_rank_1_is_not_the_main_rank() -> None:
    assert not DistContext(rank=1, world_size=2).is_main
