"""Device, precision and peak of the machine at hand; processes that are alone."""

from __future__ import annotations

import pytest
import torch

from model.inference.cpu_features import bfloat16_is_fast
from training.errors import RunError
from training.runtime.device import autocast, choose_device, choose_precision, matmul_peak
from training.runtime.distributed import Processes, launched, processes


def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(RunError, match=f"device {name!r}: it may be auto, cpu, cuda"):
        choose_device(name)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(
            RunError, match=f"device {name!r}: there is no cuda:0; PyTorch finds 0 CUDA devices"
        ):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, local_rank in (("cuda:2", 0), ("cuda", 2)):
        with pytest.raises(RunError, match=f"device {name!r}: there is no cuda:2; PyTorch finds 2"):
            choose_device(name, local_rank)


def test_processes_do_not_share_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        RunError, match="device 'cuda:1' would be that of every process; with torchrun, let it be cuda"
    ):
        choose_device("cuda:1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert choose_device("cuda:1") == torch.device("cuda:1")


def test_precision_is_one_that_needs_no_loss_scaling() -> None:
    assert choose_precision(torch.device("cpu")) == (torch.bfloat16 if bfloat16_is_fast() else torch.float32)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_autocast_computes_in_the_precision_chosen(precision: torch.dtype) -> None:
    layer = torch.nn.Linear(2, 2)
    with autocast(layer, precision):
        assert layer(torch.ones(1, 2)).dtype == precision


def test_the_peak_is_a_speed() -> None:
    assert 1e8 < matmul_peak(torch.device("cpu"), torch.float32, seconds=0) < 1e14


def test_a_process_alone_sums_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched() == 1
    with processes() as group:
        assert group == Processes()
        assert group.first
        assert group.sums([1.0, 2.0]) == [1.0, 2.0]
        tensor = torch.ones(2)
        group.sum_([tensor])
        group.wait()
        assert tensor.tolist() == [1.0, 1.0]
