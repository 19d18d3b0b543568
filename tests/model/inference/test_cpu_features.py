"""Quotas of both cgroup versions, read from files as a container has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.inference.cpu_features import available_cpus, bfloat16_is_fast, has_native_bfloat16


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 64),
        ({"sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "0::/slice/unit\n",
                "sys/fs/cgroup/slice/cpu.max": "300000 100000",
                "sys/fs/cgroup/slice/unit/cpu.max": "max 100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/x\n2:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            64,
        ),
    ],
)
def test_available_cpus_respects_the_quota(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_cpus(write(tmp_path, files)) == expected


def test_available_cpus_without_affinity_counts_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert available_cpus(tmp_path) == 3


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f\n", False),
        ("", False),
    ],
)
def test_has_native_bfloat16_reads_the_flags(tmp_path: Path, cpuinfo: str, expected: bool) -> None:
    assert has_native_bfloat16(write(tmp_path, {"cpuinfo": cpuinfo}) / "cpuinfo") is expected


def test_bfloat16_is_fast_is_repeatable() -> None:
    threads = torch.get_num_threads()
    answers = {bfloat16_is_fast.__wrapped__() for _ in range(5)}
    assert len(answers) == 1
    assert answers <= {False, has_native_bfloat16()}
    assert torch.get_num_threads() == threads
