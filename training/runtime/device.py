"""The machine a run computes on: device, precision, and how fast it multiplies matrices."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from model.inference.cpu_features import bfloat16_is_fast
from training.errors import RunError
from training.runtime.distributed import launched


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """`auto` is CUDA where there is one; several processes of a machine take one device each.

    Raises:
        RunError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RunError(f"device {name!r}: it may be auto, cpu, cuda, or one of several, cuda:1") from error
    index = local_rank if device.index is None else device.index
    if device.type == "cuda" and index >= (count := torch.cuda.device_count()):
        raise RunError(f"device {name!r}: there is no cuda:{index}; PyTorch finds {count} CUDA devices here")
    if device.index is not None and launched() > 1:
        raise RunError(f"device {name!r} would be that of every process; with torchrun, let it be cuda")
    if name != "cuda":
        return device
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def choose_precision(device: torch.device) -> torch.dtype:
    """bfloat16 where the chip is fast at it, else float32: neither needs loss scaling."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if bfloat16_is_fast() else torch.float32


def machine(device: torch.device) -> str:
    """What a run computes on, in words: for its log and the model card."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads > 1)} ({_processor()}), torch {torch.__version__}"


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def autocast(model: nn.Module, precision: torch.dtype) -> torch.autocast:
    """Mixed precision for a forward pass on the model's device."""
    device = next(model.parameters()).device.type
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision is torch.bfloat16)


def matmul_peak(device: torch.device, precision: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of a large square matrix product: what a training step is measured against."""
    size = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)  # the global one belongs to dropout
    matrix = torch.randn(
        size, size, generator=generator, device=device, dtype=precision
    )  # equal ones are faster
    matrix @ matrix  # the first call loads the kernel
    best, ends = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < ends or not best:
        best = max(best, 4 * 2 * size**3 / _seconds(matrix, products=4))
    return best


def _seconds(matrix: torch.Tensor, products: int) -> float:
    synchronise(matrix.device)
    began = time.perf_counter()
    for _ in range(products):
        matrix @ matrix
    synchronise(matrix.device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
