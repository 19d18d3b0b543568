"""The processor as this process may use it: number of CPUs, and speed of bfloat16."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

from model.timing import best_seconds


def available_cpus(root: Path = Path("/")) -> int:
    """Whole CPUs within the affinity mask and the cgroup quota, at least 1.

    A container with a quota of 2 CPUs sees all 64 of its machine; 64 threads would be throttled most of the time.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(int(quota) for quota in _quotas(root))]))


def has_native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor claims to multiply bfloat16 in hardware."""
    text = _read(cpuinfo)
    line = next((row for row in text.splitlines() if row.lower().startswith(("flags", "features"))), "")
    flags = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one on ARM
    return not flags.isdisjoint(line.split())


@functools.cache
def bfloat16_is_fast() -> bool:
    """Whether the processor multiplies bfloat16 in hardware and faster than float32, by interleaved timing.

    Most processors take half the time; some claim to support bfloat16 and take twice as long. CPU time of one
    thread is compared, so that other processes do not influence the result.
    """
    if not has_native_bfloat16():
        return False
    import torch

    factors = [torch.ones(512, 512, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    products = [functools.partial(torch.matmul, factor, factor) for factor in factors]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    bfloat16, float32 = best_seconds(products, rounds=12, clock=time.thread_time)
    torch.set_num_threads(threads)
    return bfloat16 < float32


def _quotas(root: Path) -> list[float]:
    """All limits, in CPUs, from this process's cgroup up to the root (cgroup v2 and v1)."""
    mount = root / "sys/fs/cgroup"
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        v1 = "cpu" in controllers.split(",")
        if controllers and not v1:
            continue
        top = mount / "cpu" if v1 else mount
        leaf = top / path.lstrip("/")
        folders = [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(top))]
        quotas += [quota for folder in folders if (quota := _quota_v1(folder) if v1 else _quota_v2(folder))]
    return quotas


def _quota_v2(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()  # "200000 100000" or "max 100000"
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
