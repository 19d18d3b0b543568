"""The real service on the weights that ship, started once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.ports import free_port

START_SECONDS = 120


@pytest.fixture(scope="session")
def shipped() -> Iterator[httpx.Client]:
    """A client of a `bert-serve` process with every default but the port."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERT_")}
    command = [sys.executable, "-m", "app", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, env=environment) as server:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                _wait_until_ready(client, server)
                yield client
        finally:
            server.terminate()


def _wait_until_ready(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, f"the service ended with {server.returncode}"
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not ready after {START_SECONDS} s")
