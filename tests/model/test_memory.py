"""Buffers that are freed and taken again cost no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PAGES = 16384  # of a buffer of 64 MiB
_FAULTS = """
import resource, torch
from model.memory import keep_freed_memory
{begin}
torch.ones(16 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(16 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(begin: str) -> int:
    command = [sys.executable, "-c", _FAULTS.format(begin=begin)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc's allocator")
def test_freed_buffers_are_kept() -> None:
    if faults("pass") < 10 * _PAGES / 2:
        pytest.skip("pages are large here, so there is nothing to save")
    assert faults("keep_freed_memory()") < _PAGES
