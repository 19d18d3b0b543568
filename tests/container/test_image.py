"""The image, built and run for real. Minutes, so only `make test-container` runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.container import image

TAG = os.environ.get("IMAGE", "localhost/bert-service:test")
PATIENCE = 180
MAX_MEGABYTES = 1500

pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(
        not (shutil.which("buildah") and shutil.which("debootstrap") and os.geteuid() == 0),
        reason="needs buildah and debootstrap (Debian packages) and root",
    ),
]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A working container of a freshly built image."""
    started = time.monotonic()
    image.build(TAG, tmp_path_factory.mktemp("build"))
    seconds = time.monotonic() - started
    print(f"\n{TAG}: built in {seconds:.0f} s, {image.megabytes(TAG):.0f} MB", file=sys.stderr)
    name = image.buildah("from", "--pull=never", TAG)
    yield name
    image.buildah("rm", name)


def inside(container: str, script: str, user: str = "10001:0") -> str:
    """Output of a Python script in the container."""
    return image.buildah("run", "--isolation", "chroot", "--user", user, container, "--", "python3", "-c", script)


@pytest.fixture(scope="module")
def config(container: str) -> dict[str, Any]:
    return image.configuration(TAG)


def test_process_is_not_root_and_can_change_nothing_that_is_installed(container: str) -> None:
    places = ["/", "/srv", "/opt/bert/app", "/opt/venv"]
    script = f"import os; print(os.getuid(), any(os.access(place, os.W_OK) for place in {places}))"
    assert inside(container, script) == "10001 False"
    script = "import os; print(all(os.access(place, os.W_OK) for place in ('/checkpoints', '/runs')))"
    assert inside(container, script, user="12345:0") == "True"


def test_image_holds_neither_compiler_nor_download_tool(container: str) -> None:
    script = "import shutil; print([shutil.which(tool) for tool in ('gcc', 'cc', 'g++', 'curl', 'git')])"
    assert inside(container, script) == "[None, None, None, None, None]"


def test_image_is_no_larger_than_stated(container: str) -> None:
    assert image.megabytes(TAG) < MAX_MEGABYTES


def test_signals_reach_the_server_itself(config: dict[str, Any]) -> None:
    assert config["Entrypoint"] == ["bert-serve"]  # exec form: no shell in between
    assert config["StopSignal"] == "SIGTERM"
    assert config["User"] == "10001:0"


def test_container_answers_and_ends_cleanly(container: str, config: dict[str, Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--isolation", "chroot", "--env", f"BERT_PORT={port}", "--env", "BERT_HOST=127.0.0.1"]
    command = ["buildah", "run", *options, container, "--", *config["Entrypoint"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as runner:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                _until_ready(client, runner)
                _answers(client)
                image.send(signal.SIGHUP, runner, "bert-serve")
                _until_reloaded(client)
            _healthcheck_passes(container, config, port)
            image.send(signal.SIGTERM, runner, "bert-serve")
            output, _ = runner.communicate(timeout=60)
        finally:
            runner.kill()
    assert runner.returncode == 0, output


def _until_ready(client: httpx.Client, runner: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and runner.poll() is None:
        try:
            if client.get("/health/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    runner.kill()
    raise AssertionError(runner.communicate()[0])


def _until_reloaded(client: httpx.Client) -> None:
    end = time.monotonic() + PATIENCE
    while 'bert_reloads_total{result="ok"} 1.0' not in client.get("/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.1)


def _answers(client: httpx.Client) -> None:
    for path, inputs in {
        "/fill-mask": "The film was [MASK].",
        "/next-sentence": {"text": "It was a film.", "text_pair": "It was good."},
        "/sentiment": "I loved it.",
    }.items():
        answer = client.post(path, json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["results"]) == 1
    assert client.get("/").is_success
    assert client.get("/docs").is_success


def _healthcheck_passes(container: str, config: dict[str, Any], port: int) -> None:
    check = config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    options = ["--isolation", "chroot", "--env", f"BERT_PORT={port}"]
    image.buildah("run", *options, container, "--", *check[1:])
    with pytest.raises(subprocess.CalledProcessError):  # and it fails where nothing answers
        image.buildah("run", "--isolation", "chroot", "--env", "BERT_PORT=1", container, "--", *check[1:])


def test_code_change_reuses_the_layers_of_the_dependencies(container: str, tmp_path: Path) -> None:
    context = tmp_path / "context"
    ignore = shutil.ignore_patterns("__pycache__", ".venv", ".git", "runs", "data", "node_modules", ".*_cache")
    shutil.copytree(image.ROOT, context, ignore=ignore)
    changed = context / "app" / "__init__.py"
    changed.write_text(changed.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    image.build(TAG + "-changed", tmp_path, context)
    assert _layers(TAG + "-changed")[:-1] == _layers(TAG)[:-1]
    assert _layers(TAG + "-changed")[-1] != _layers(TAG)[-1]
    image.buildah("rmi", TAG + "-changed")


def _layers(tag: str) -> list[str]:
    found: list[str] = json.loads(image.buildah("inspect", "--type", "image", tag))["OCIv1"]["rootfs"]["diff_ids"]
    return found
