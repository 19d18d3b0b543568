"""The device of a run: choice, precision and memory."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from model.inference.cpu_features import available_cpus, bfloat16_is_fast
from model.inference.malloc import keep_freed_memory
from training.errors import RunError
from training.runtime.distributed import launched

DIVERGED_REMEDY = "start again with a lower learning_rate or a higher warmup_fraction"


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device with this name. `auto` is CUDA if available; each process of a node has its own GPU.

    Raises:
        RunError: the device does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RunError(f"device {name!r}: use auto, cpu, cuda, or one of several GPUs such as cuda:1") from error
    index = local_rank if device.index is None else device.index
    if device.type == "cuda" and index >= (count := torch.cuda.device_count()):
        raise RunError(f"device {name!r}: cuda:{index} is missing; PyTorch finds {count} CUDA devices")
    if device.index is not None and launched().local_world_size > 1:
        raise RunError(f"device {name!r} would be shared by all processes; with torchrun, use cuda")
    if device.type != "cuda":
        return device
    torch.cuda.set_device(index)  # calls without a device, such as `is_bf16_supported`, use this one
    return torch.device("cuda", index)


def choose_precision(device: torch.device) -> torch.dtype:
    """bfloat16 if the chip is fast at it, else float32: neither needs loss scaling."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if bfloat16_is_fast() else torch.float32


def autocast(model: nn.Module, precision: torch.dtype) -> torch.autocast:
    """Mixed precision for a forward pass on the model's device."""
    device = next(model.parameters()).device.type
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision is torch.bfloat16)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients or dropout, in the precision of training; the mode is restored at the end."""
    was_training = model.training
    precision = choose_precision(next(model.parameters()).device)
    model.eval()
    try:
        with torch.no_grad(), autocast(model, precision):
            yield
    finally:
        model.train(was_training)


def check_finite(outputs: Tensor) -> None:
    """Raise RunError if outputs of an evaluation are not finite, because the training of the network diverged."""
    if not outputs.isfinite().all():
        raise RunError(f"the network's outputs are not finite: {DIVERGED_REMEDY}")


def machine_description(device: torch.device) -> str:
    """Device and torch version, for the log and the model card."""
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


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; without effect on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def configure_process() -> None:
    """Set threads, TF32 and the allocator of a training process. Call it once, before tensors are made."""
    torch.set_num_threads(max(1, available_cpus() // launched().local_world_size))
    torch.backends.cuda.matmul.allow_tf32 = True  # for float32 products on a GPU
    keep_freed_memory()


def maybe_compile(module: nn.Module, *, cuda_graphs: bool = False) -> None:
    """Compile a module's whole forward pass on CUDA, in place, because all batches of a stage have one shape. On a CPU
    the oneDNN kernels are called without a compiler.

    Args:
        cuda_graphs: replay the kernels of a pass with one launch. If torch cannot, it warns and launches each.
    """
    if next(module.parameters()).device.type == "cuda":
        module.compile(fullgraph=True, dynamic=False, mode="reduce-overhead" if cuda_graphs else None)
