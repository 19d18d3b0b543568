"""Programs of Node.js for tests: skipped, and loudly, where they cannot be had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PATIENCE = 120


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def install(sources: Path, folder: Path, what: str) -> None:
    """Copy a program into a folder and install its packages there; skip the test if that cannot be."""
    if shutil.which("npm") is None:
        pytest.skip(f"npm is not installed: {what} was not tried")
    for file in sources.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    options = ("--no-fund", "--no-audit", "--prefer-offline", "--fetch-retries=0", "--fetch-timeout=30000")
    installed = call("npm", "ci", *options, cwd=folder)
    if installed.returncode:
        pytest.skip(f"npm packages cannot be had, {what} was not tried: {installed.stderr[-300:]}")
