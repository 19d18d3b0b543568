"""A real `bert-serve` on a machine that lacks something: files, room, standard streams, a worker that moves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import uvicorn

from app.api.application import create_app
from app.server import file_limits
from app.server.main import DrainingServer
from app.settings import Settings
from tests.app.process import PATIENCE, Process, children, running

ROOT = Path(__file__).parents[3]
GOOD = {"inputs": "good"}

_WORKERS = """
import os, sys
from app import workers
from app.settings import Settings
workers.{name} = {value}
sys.exit(workers.Workers(Settings.read(os.environ)).run())
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_abort_the_end(checkpoints: dict[str, str], closed: str) -> None:
    script = (
        "import os, subprocess, sys\n"
        f"sys.exit(subprocess.call(['sh', '-c', 'exec \"$0\" -m app {closed}', sys.executable]))"
    )
    with running(checkpoints, script=script) as process:
        process.until_ready()
        assert httpx.post(process.url + "/sentiment", json=GOOD, timeout=PATIENCE).status_code == 200
        (serving,) = listeners(process.port)
        os.kill(serving, signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output


def test_as_many_files_may_be_open_as_the_machine_allows() -> None:
    script = "from app.server import file_limits; file_limits.raise_limit(); print(file_limits.limit())"
    command = ["sh", "-c", 'ulimit -S -n 64; exec "$0" -c "$1"', sys.executable, script]
    most = int(subprocess.check_output(command, cwd=ROOT, timeout=PATIENCE))
    assert 64 < most <= 65_536


async def test_too_many_connections_are_told_once_before_callers_are_cut_off(
    checkpoints: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings.read(checkpoints))
    server = DrainingServer(uvicorn.Config(app), app.state.engine, drain_seconds=1.0)
    monkeypatch.setattr(file_limits, "limit", lambda: 100)
    with caplog.at_level(logging.WARNING):
        for tick, count in enumerate((90, 91, 95, 10)):
            server.server_state.connections = set(range(count))  # type: ignore[arg-type]
            await server.on_tick(tick)
            assert f"bert_connections {count}.0" in app.state.metrics.render().decode()
    assert [record.getMessage() for record in caplog.records] == [
        "91 connections are open, and no more than 100 files can be (ulimit -n)"
    ]


async def test_drain_does_not_wait_for_those_it_refuses(checkpoints: dict[str, str]) -> None:
    app = create_app(Settings.read(checkpoints))
    server = DrainingServer(uvicorn.Config(app), app.state.engine, drain_seconds=300.0)
    answered = asyncio.Event()
    accepted, refused = (asyncio.create_task(answered.wait()), asyncio.create_task(asyncio.sleep(PATIENCE)))
    server.server_state.tasks = {accepted}  # type: ignore[assignment]
    server.handle_exit(signal.SIGTERM, None)
    ends = [await server.on_tick(tick) for tick in range(2)]
    server.server_state.tasks.add(refused)  # type: ignore[arg-type]
    ends.append(await server.on_tick(2))
    answered.set()
    await accepted
    ends.append(await server.on_tick(3))
    refused.cancel()
    assert ends == [False, False, False, True]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ready_workers(process: Process) -> str:
    lines = httpx.get(process.url + "/metrics", timeout=PATIENCE).text.splitlines()
    return next(line for line in lines if line.startswith("bert_ready "))


def test_worker_that_hangs_is_replaced(checkpoints: dict[str, str]) -> None:
    script = _WORKERS.format(name="_SILENT", value=3.0)
    with running(checkpoints | {"BERT_WORKERS": "2", "BERT_THREADS": "1"}, script=script) as process:
        process.until_ready()
        until(lambda: len(listeners(process.port)) == 2)
        hung = max(listeners(process.port))
        os.kill(hung, signal.SIGSTOP)
        until(lambda: hung not in listeners(process.port) and len(listeners(process.port)) == 2)
        until(lambda: ready_workers(process) == "bert_ready 2.0")
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert output.count(f"worker {hung} hangs: killed") == 1
    assert f"worker {hung} ended with -9; starting another in 0 s" in output


def test_worker_whose_inference_process_hangs_is_replaced(checkpoints: dict[str, str]) -> None:
    environ = {"BERT_WORKERS": "2", "BERT_THREADS": "1", "BERT_REQUEST_TIMEOUT_MS": "1000"}
    with running(checkpoints | environ) as process:
        process.until_ready()
        until(lambda: ready_workers(process) == "bert_ready 2.0")
        hung = max(listeners(process.port))
        (inference,) = children(hung)
        os.kill(inference, signal.SIGSTOP)

        def replaced() -> bool:
            with suppress(httpx.TransportError):  # the connection of the one that ends
                httpx.post(process.url + "/sentiment", json=GOOD, timeout=PATIENCE)  # until one hangs there
            return hung not in listeners(process.port) and ready_workers(process) == "bert_ready 2.0"

        until(replaced)
        assert not Path(f"/proc/{inference}").exists()
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert output.count("stalled: a batch has been computed for") == 1
    assert output.count(f"worker {hung} ended with 4; starting another in 0 s") == 1


def test_service_of_one_worker_whose_inference_process_hangs_ends(checkpoints: dict[str, str]) -> None:
    """Docker restarts only what has ended; what hangs and has no liveness probe would hang for ever."""
    with running(checkpoints | {"BERT_THREADS": "1", "BERT_REQUEST_TIMEOUT_MS": "1000"}) as process:
        process.until_ready()
        os.kill(process.inference_process(), signal.SIGSTOP)
        assert httpx.post(process.url + "/sentiment", json=GOOD, timeout=PATIENCE).status_code == 504
        until(lambda: httpx.get(process.url + "/health/ready").status_code == 503)
        assert httpx.get(process.url + "/health/live").status_code == 200
        code, output = process.end()
    assert code == 4, output
    assert output.count("stalled: a batch has been computed for") == 1
    assert output.count("a batch does not end: the inference process is ended") == 1


def test_worker_that_hangs_does_not_keep_the_service_from_its_end(checkpoints: dict[str, str]) -> None:
    script = _WORKERS.format(name="_LAST_SECONDS", value=1.0)
    environ = checkpoints | {"BERT_WORKERS": "2", "BERT_THREADS": "1", "BERT_DRAIN_SECONDS": "1"}
    with running(environ, script=script) as process:
        process.until_ready()
        until(lambda: len(listeners(process.port)) == 2)
        hung = max(listeners(process.port))
        os.kill(hung, signal.SIGSTOP)
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == signal.SIGKILL
    assert output.count(f"worker {hung} hangs: killed") == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for a process's children")
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_of_a_terminal_ends_workers_that_are_starting(checkpoints: dict[str, str], workers: int) -> None:
    """It reaches all processes of the terminal."""
    with running(checkpoints, "--workers", "2") as process:
        started: list[int] = []

        def have_started() -> bool:
            found = children(process.process.pid)
            started[:] = [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            return len(started) >= workers

        until(have_started)
        time.sleep(0.1)
        os.kill(process.process.pid, signal.SIGINT)
        for pid in started:
            with suppress(ProcessLookupError):  # the first has ended it already
                os.kill(pid, signal.SIGINT)
        code, output = process.end()
    assert (code, "Traceback" in output) == (0, False), output


def test_folder_without_room_for_metrics_ends_with_one_clear_line(checkpoints: dict[str, str]) -> None:
    environ = checkpoints | {"BERT_WORKERS": "2"}
    with running(environ, script=_WORKERS.format(name="_METRICS_BYTES", value=2**60)) as process:
        code, output = process.end()
    assert code == 3
    assert output.endswith("make room, or set TMPDIR\n")
    assert len(output.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_full_disk_of_the_log_does_not_change_the_exit_code(checkpoints: dict[str, str], workers: str) -> None:
    command = [sys.executable, "-m", "app", "--sentiment", "/nowhere", "--port", "0", "--workers", workers]
    with Path("/dev/full").open("w") as full:
        environ = os.environ | checkpoints
        ended = subprocess.run(command, cwd=ROOT, env=environ, stdout=full, stderr=full, timeout=PATIENCE, check=False)
    assert ended.returncode == 3


@pytest.mark.parametrize("workers", ["1", "2"])
def test_last_words_are_json_where_lines_are(checkpoints: dict[str, str], workers: str) -> None:
    environ = checkpoints | {"BERT_LOG_FORMAT": "json", "BERT_SENTIMENT": "/nowhere", "BERT_WORKERS": workers}
    with running(environ) as process:
        code, output = process.end()
    assert code == 3
    lines = [json.loads(line) for line in output.splitlines()]
    last = {line["message"] for line in lines if line["level"] == "critical"}
    assert [message.partition(";")[0] for message in last] == ["/nowhere: is not a directory"]
