"""The device of a run: choice, precision, speed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.commands import environment_of, set_ranks
from training.errors import RunError
from training.runtime import device
from training.runtime.device import (
    autocast,
    choose_device,
    choose_precision,
    configure_process,
    machine_description,
    maybe_compile,
)


def test_choose_device_auto_takes_a_gpu_where_there_is_one() -> None:
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", ""])
def test_choose_device_of_an_unknown_name_is_an_error(name: str) -> None:
    with pytest.raises(RunError, match=f"device {name!r}: use auto, cpu, cuda"):
        choose_device(name)


def test_choose_device_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(RunError, match=f"device {name!r}: cuda:0 is missing; PyTorch finds 0 CUDA devices"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, local_rank in (("cuda:2", 0), ("cuda", 2)):
        with pytest.raises(RunError, match=f"device {name!r}: cuda:2 is missing; PyTorch finds 2"):
            choose_device(name, local_rank)


def test_choose_device_refuses_one_gpu_for_several_processes_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    set_ranks(monkeypatch, environment_of(0, 2, per_node=2))
    with pytest.raises(RunError, match="device 'cuda:1' would be shared by all processes; with torchrun, use cuda"):
        choose_device("cuda:1")
    set_ranks(monkeypatch, environment_of(0, 2))
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert chosen == [1], "what asks for no device, such as its precision, asks this one"


@pytest.mark.parametrize(("is_fast", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_choose_precision_needs_no_loss_scaling(
    monkeypatch: pytest.MonkeyPatch, is_fast: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr(device, "bfloat16_is_fast", lambda: is_fast)
    assert choose_precision(torch.device("cpu")) == expected


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_autocast_computes_in_the_chosen_precision(precision: torch.dtype) -> None:
    layer = torch.nn.Linear(2, 2)
    with autocast(layer, precision):
        assert layer(torch.ones(1, 2)).dtype == precision


def test_machine_description_names_processor_and_torch() -> None:
    assert f"torch {torch.__version__}" in machine_description(torch.device("cpu"))


def test_configure_process_shares_the_cores_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_cpus", lambda: 8)
    set_ranks(monkeypatch, environment_of(0, 6, per_node=2))
    configure_process()
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("cuda_graphs", "mode"), [(False, None), (True, "reduce-overhead")])
def test_maybe_compile_on_a_gpu_makes_one_graph_of_one_shape(cuda_graphs: bool, mode: str | None) -> None:
    asked: dict[str, Any] = {}
    weight = SimpleNamespace(device=torch.device("cuda"))
    module = SimpleNamespace(parameters=lambda: iter([weight]), compile=lambda **options: asked.update(options))
    maybe_compile(module, cuda_graphs=cuda_graphs)  # type: ignore[arg-type]
    assert asked == {"fullgraph": True, "dynamic": False, "mode": mode}


def test_maybe_compile_leaves_a_module_on_a_cpu_alone() -> None:
    layer = torch.nn.Linear(2, 2)
    maybe_compile(layer)
    assert layer._compiled_call_impl is None
