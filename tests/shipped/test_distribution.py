"""The service as a wheel from its source distribution, installed without the repository."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.app.process import running

ROOT = Path(__file__).parents[2]


def run(*command: str, **options: object) -> str:
    """What `python COMMAND` prints."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling")
def test_distribution_is_built_from_its_sources_and_serves_the_shipped_weights(tmp_path: Path) -> None:
    run("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as sources:
        sources.extractall(tmp_path, filter="data")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=packed.with_name(packed.name[:-7]))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed_wheel:
        needs = packed_wheel.read(f"bert_service-{version('bert-service')}.dist-info/METADATA").decode()
    unconditional = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", needs, re.MULTILINE)
    assert "fastapi" in unconditional
    assert "bert-service-client" not in unconditional  # no package index has it
    installed = tmp_path / "installed"
    run("-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--target", str(installed), str(wheel))
    elsewhere = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(installed)}  # the current directory is not on the path
    program = "from training import recipe; print(recipe.load_recipe('shipped').name, recipe.__file__)"
    read = run("-c", program, env=os.environ | elsewhere)
    assert read == f"shipped {installed / 'training' / 'recipe.py'}\n"
    usage = run(str(installed / "bin" / "bert-train"), "--help", env=os.environ | elsewhere)
    assert usage.startswith("usage: bert-train ")
    with running(elsewhere) as service:
        service.until_ready()
        assert service.ask("A wonderful film.").json()["results"][0]["predictions"][0]["label"] == "POSITIVE"
