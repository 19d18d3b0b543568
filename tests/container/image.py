"""Builds the image and runs it without a Docker engine: buildah, in chroot isolation, as root."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim"
BUILD_SECONDS = 1800


def buildah(*arguments: str, timeout: float = 120) -> str:
    """Standard output of one command; its errors go to the terminal."""
    return _output(["buildah", *arguments], timeout)


def exists(image: str) -> bool:
    """Whether the local store holds an image."""
    return image in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def provide_base(scratch: Path) -> None:
    """The base image: pulled if its registry answers, else a minimal Debian under its name."""
    pull = ["buildah", "pull", "--quiet", BASE]
    if exists(BASE) or subprocess.run(pull, check=False, timeout=300).returncode == 0:
        return
    root = scratch / "debian"
    packages = "python3,python3-pip,python3-venv"
    _show(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root)], 900)
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, f"{root}/", "/")
    buildah("commit", "--quiet", "--rm", container, BASE, timeout=600)
    shutil.rmtree(root)


def pip_volumes(scratch: Path) -> list[str]:
    """Options that let pip in a build do what pip does here: its settings, and the local files they name."""
    settings: dict[str, str] = {}
    for line in _output([sys.executable, "-m", "pip", "config", "list"], 60).splitlines():
        name, _, value = line.partition("=")  # global.cert='...', :env:.find-links='...'
        settings[name.rpartition(".")[2]] = " ".join(shlex.split(value))
    configuration = scratch / "pip.conf"
    configuration.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    words = {word for value in settings.values() for word in value.split()}
    indexes = {str(Path(word.removeprefix("file://")).parent) for word in words if word.startswith("file:///")}
    paths = indexes | {word for word in words if word.startswith("/") and Path(word).exists()}
    mounts = [f"{configuration}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in sorted(paths))]
    return [f"--volume={mount}" for mount in mounts]


def build(tag: str, scratch: Path, context: Path = ROOT) -> None:
    """The `cpu` target, which is the default one."""
    provide_base(scratch)
    options = ["--isolation=chroot", "--format=docker", "--pull=never", "--layers", *pip_volumes(scratch)]
    _show(["buildah", "build", *options, f"--tag={tag}", str(context)], BUILD_SECONDS)


def configuration(tag: str) -> dict[str, object]:
    """What the image says about how to run it."""
    inspected = json.loads(buildah("inspect", "--type", "image", tag))
    found: dict[str, object] = inspected["Docker"]["config"]
    return found


def megabytes(tag: str) -> float:
    """Size on disk, of all layers together."""
    container = buildah("from", "--pull=never", tag)
    try:
        mount = buildah("mount", container)
        return int(_output(["du", "-sxk", mount], 120).split()[0]) / 1000
    finally:
        buildah("rm", container)


def send(number: signal.Signals, runner: subprocess.Popen[str], program: str) -> None:
    """Send a signal to the program in the container, as `docker stop` sends SIGTERM."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _descends(int(entry.name), runner.pid):
            words = _read(entry / "cmdline").split("\0")
            wrapper = words[0].startswith("buildah")
            if not wrapper and any(word.endswith(f"/{program}") for word in words):
                os.kill(int(entry.name), number)
                return
    raise AssertionError(f"{program} does not run")


def _output(command: list[str], seconds: float) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=seconds)
    return done.stdout.strip()


def _show(command: list[str], seconds: float) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=seconds)


def _descends(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        fields = _read(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
        process = int(fields[1]) if fields else 0
    return False


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended
        return ""
