"""The nginx configuration of docs/deployment.md: its figures fit the service, and a real nginx runs it."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from tests.app.process import running
from tests.docs import blocks

(CONFIGURATION,) = [block.text for block in blocks.of("nginx")]
PATIENCE = 30


def value(directive: str) -> str:
    found = re.search(rf"^\s*{directive} ([^;]+);", CONFIGURATION, re.MULTILINE)
    assert found is not None, directive
    return found[1]


def test_figures_fit_the_settings() -> None:
    settings = Settings()
    assert int(value("client_max_body_size").removesuffix("m")) * 1024 * 1024 == settings.max_body_bytes
    assert int(value("proxy_read_timeout").removesuffix("s")) * 1000 > settings.request_timeout_ms
    assert int(value("keepalive_timeout").removesuffix("s")) < settings.keep_alive_seconds
    assert value("server") == f"127.0.0.1:{settings.port}"


def test_braces_are_balanced() -> None:
    assert CONFIGURATION.count("{") == CONFIGURATION.count("}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, pretrained: Path, sentiment: Path) -> Iterator[httpx.Client]:
    """A client of the service behind the documented nginx, over TLS with a certificate of its own."""
    nginx, openssl = shutil.which("nginx"), shutil.which("openssl")
    if not (nginx and openssl):
        pytest.skip("needs nginx and openssl (Debian packages)")
    folder = tmp_path_factory.mktemp("nginx")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", "privkey.pem", "-out", "fullchain.pem"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE)
    with running({"BERT_PRETRAINED": str(pretrained), "BERT_SENTIMENT": str(sentiment)}) as service:
        service.until_ready()
        port = free_port()
        block = CONFIGURATION.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
        block = block.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("/etc/nginx/tls", str(folder))
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off;"
            f"client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;"
            f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;"
            f"\n{block}\n}}"
        )
        with subprocess.Popen([nginx, "-e", "stderr", "-c", str(folder / "nginx.conf")]) as process:
            try:
                trusted = ssl.create_default_context(cafile=folder / "fullchain.pem")
                with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted) as client:
                    _wait(port, process)
                    yield client
            finally:
                process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, "nginx ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("nginx does not listen")


def test_tasks_answer_through_the_proxy(proxied: httpx.Client) -> None:
    response = proxied.post("/sentiment", json={"inputs": "good"})
    assert response.status_code == 200
    assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])
    assert "queue;dur=" in response.headers["server-timing"]


def test_pages_answer_and_metrics_do_not(proxied: httpx.Client) -> None:
    assert proxied.get("/").status_code == 200
    assert proxied.get("/info").json()["status"] == "ready"
    assert proxied.get("/metrics").status_code == 404
    assert proxied.get("/health/live").status_code == 404


def test_too_large_a_body_is_stopped_by_the_proxy(proxied: httpx.Client) -> None:
    response = proxied.post("/sentiment", json={"inputs": "x" * (Settings().max_body_bytes + 1)})
    assert response.status_code == 413
    assert not response.headers["content-type"].startswith("application/problem+json")
