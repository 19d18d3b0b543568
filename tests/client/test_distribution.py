"""The folder client/ as pip installs it: two packages and one command, beside other packages of a program."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
PACKAGES = ("bert_client", "bert_tables")


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload]


def test_distribution_works_beside_a_package_that_is_called_app(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(CLIENT / package, tmp_path / package)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("OWN = 1\n")
    program = (
        "import app, sys; from bert_client import AsyncBertClient, BertClient; "
        "from bert_client.command.main import main; "
        "assert app.OWN and not {'model', 'training', 'torch'} & {*sys.modules}; sys.argv = ['bert', '--help']; main()"
    )
    done = run([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""})
    assert done.stderr == ""
    assert done.stdout.startswith("usage: bert ")


def test_distribution_needs_httpx_only() -> None:
    assert [requirement.partition(">")[0] for requirement in PROJECT["dependencies"]] == ["httpx"]


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling")
def test_distribution_is_built_by_pip_and_installed_into_an_empty_environment(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(CLIENT)]
    done = run(build)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("bert_service_client-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {*PACKAGES}
    assert {f"{package}/py.typed" for package in PACKAGES} <= {*names}
    venv.create(tmp_path / "empty", with_pip=False)
    installed = next((tmp_path / "empty" / "lib").iterdir()) / "site-packages"
    done = run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)])
    assert done.returncode == 0, done.stderr
    program = "from bert_tables import open_table"  # without httpx
    done = run([str(tmp_path / "empty" / "bin" / "python"), "-c", program], cwd=tmp_path, env={})
    assert (done.returncode, done.stderr) == (0, "")
