"""The commands, as processes in a folder that has files with the names of our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.process import PATIENCE, WITHOUT_TORCH, running

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
from bert_service import {0}
if __name__ == "__main__":
    sys.exit({0}())
"""
"""What pip writes into `bin`, for a function."""


def install(folder: Path, program: str) -> str:
    """A script in the `bin` of a folder; Python looks for modules there, and not in the current folder."""
    script = folder / "bin" / "script"
    script.parent.mkdir()
    script.write_text(program)
    return str(script)


def place(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise SystemExit('the wrong file was imported')\n")


def run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Python in a folder, with `path` before our packages in PYTHONPATH."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT), str(ROOT / "client")]))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    ("command", "file", "package"),
    [
        ("bert-serve", "app.py", "app"),
        ("bert-serve", "model/__init__.py", "model"),
        ("bert-train", "training/__init__.py", "training"),
        ("bert-train", "model.py", "model"),
        ("-m app", "model.py", "model"),
        ("-m training", "model.py", "model"),
    ],
)
def test_commands_name_the_file_that_hides_a_package(tmp_path: Path, command: str, file: str, package: str) -> None:
    place(tmp_path, file)
    advised = {"-m app": "bert-serve", "-m training": "bert-train"}.get(command, command)
    if advised == command:
        script = install(tmp_path, SCRIPT.format(command.removeprefix("bert-")))
        done = run(tmp_path, script, "--help", path=".")
    else:
        done = run(tmp_path, *command.split(), "--help")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {tmp_path / file.removesuffix('/__init__.py')} hides the package '{package}' of bert-service: "
        f"rename it, or run {advised} without its folder in PYTHONPATH\n"
    )


def test_serve_answers_in_a_folder_with_files_of_the_same_names(tmp_path: Path) -> None:
    place(tmp_path, "app.py", "model.py", "training.py")
    script = install(tmp_path, SCRIPT.format("serve"))
    path = WITHOUT_TORCH["PYTHONPATH"].strip(os.pathsep)  # an empty entry would be the current folder
    environ = {"PYTHONPATH": os.pathsep.join([path, str(ROOT)])}
    start = f"import os, sys; os.chdir({str(tmp_path)!r}); os.execl(sys.executable, sys.executable, {script!r})"
    with running(environ, script=start) as service:
        service.until_ready()
        assert service.ask().status_code == 200


def test_train_starts_its_processes_in_a_folder_with_files_of_the_same_names(tmp_path: Path) -> None:
    """Spawned processes, and the fork server of the loader, which imports modules before it has its parent's path."""
    place(tmp_path, "app.py", "model.py", "training.py")
    program = """
import multiprocessing
import bert_service, training.__main__
def main():
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        context.set_forkserver_preload(["training.errors", "model.errors"])
        process = context.Process(target=isinstance, args=(1, int))
        process.start()
        process.join()
        print(method, process.exitcode, flush=True)
if __name__ == "__main__":
    training.__main__.main = main
    bert_service.train()
"""
    done = run(tmp_path, install(tmp_path, program))
    assert (done.stdout, done.stderr) == ("spawn 0\nforkserver 0\n", "")
