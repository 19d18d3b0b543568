"""Signals: draining, reloading, and the end of a service whose models fail."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from app.http.application import create_app
from app.server.draining import DrainingServer
from app.server.hangup import Hangup
from app.settings import Settings
from tests.app.process import PATIENCE, WITHOUT_TORCH, Process, children, running, wait_until
from tests.app.server.conftest import StartServer
from tests.app.waiting import until

JSON_HEAD = b"POST /sentiment HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
BODY = b'{"inputs":"good"}'
GOOD = {"inputs": "good"}


# In this process, with the fake backend -------------------------------------------------------------------------


async def test_sigterm_answers_what_was_accepted(start_server: StartServer, backend: Any) -> None:
    async with start_server() as served:
        backend.gate.clear()
        asked = [asyncio.create_task(served.client.post("/sentiment", json=GOOD)) for _ in range(50)]
        await served.queued(50)
        served.send(signal.SIGTERM)
        await until(lambda: served.lifecycle.refusing)
        backend.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        await served.end()


async def test_sigterm_leaves_no_request_of_a_pipeline_without_an_answer(
    start_server: StartServer, backend: Any
) -> None:
    """The first is being computed; the others wait for their turn on the connection."""
    async with start_server() as served:
        backend.gate.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write((JSON_HEAD + BODY) * 3)
        await served.queued(1)
        served.send(signal.SIGTERM)
        await until(lambda: served.lifecycle.refusing)
        backend.gate.set()
        async with asyncio.timeout(PATIENCE):
            received = await reader.read()
        writer.close()
        await served.end()
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"503", b"503"], received
    assert received.lower().count(b"connection: close") == 1


async def test_drain_that_lasts_too_long_answers_503_and_says_so(
    start_server: StartServer, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_server(drain_seconds=0.1) as served:
        computed = await served.held()
        waits = asyncio.create_task(served.client.post("/sentiment", json=GOOD))
        await served.queued(2)
        served.send(signal.SIGTERM)
        for answer in (await computed, await waits):
            assert (answer.status_code, answer.json()["code"]) == (503, "stopped")
        backend.gate.set()  # a server that closes waits for the running batch
        await served.end()
    assert "BERT_DRAIN_SECONDS=0.1 have passed; requests without a complete response: 2" in caplog.text
    assert served.metrics.get_sample_value("bert_requests_cancelled_total") == 0


async def test_caller_who_hangs_up_is_dropped_before_compute(start_server: StartServer, backend: Any) -> None:
    async with start_server() as served:
        first = await served.held()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(JSON_HEAD + BODY)
        await served.queued(2)
        writer.transport.abort()
        await served.queued(1)
        assert served.lifecycle.queued_tokens == 0
        backend.gate.set()
        assert (await first).status_code == 200
        assert await served.metric("bert_requests_cancelled_total") == 1
        assert await served.metric('bert_requests_total{status="499",task="sentiment"}') == 1
    assert [len(batch) for batch in backend.batches] == [1]


async def test_port_answers_503_while_the_server_drains(start_server: StartServer) -> None:
    async with start_server() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(JSON_HEAD + BODY[:10])  # an accepted request whose body is on its way
        await writer.drain()
        await served.client.get("/health/live")  # by now the head has been read
        served.send(signal.SIGTERM)
        await until(lambda: served.lifecycle.refusing)
        ready = await served.client.get("/health/ready")
        late = await served.client.post("/sentiment", json=GOOD)
        assert (ready.status_code, ready.json()["code"], ready.headers["connection"]) == (503, "draining", "close")
        assert (late.status_code, late.json()["code"]) == (503, "draining")
        assert "retry-after" in late.headers
        writer.write(BODY[10:])
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
        await served.end()
    assert answer.startswith(b"HTTP/1.1 200")


async def test_ten_sighups_during_a_reload_are_one_more_reload(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server() as served:
        began: list[asyncio.Event] = []

        async def reload() -> bool:
            began.append(asyncio.Event())
            await began[-1].wait()
            return True

        monkeypatch.setattr(served.lifecycle, "reload", reload)
        served.send(signal.SIGHUP)
        await until(lambda: len(began) == 1)
        for _ in range(10):
            served.send(signal.SIGHUP)
            await asyncio.sleep(0.01)  # the loop sees each of them
        assert len(began) == 1
        began[0].set()  # the files may have changed since it began
        await until(lambda: len(began) == 2)
        began[1].set()
        await asyncio.sleep(0.1)
        assert len(began) == 2
        served.send(signal.SIGHUP)
        await until(lambda: len(began) == 3)


async def test_sighup_while_the_models_load_is_a_reload_after_that(start_server: StartServer, backend: Any) -> None:
    backend.may_load.clear()
    async with start_server() as served:
        served.send(signal.SIGHUP)
        await asyncio.sleep(0.05)
        assert await served.metric('bert_reloads_total{result="ok"}') == 0
        backend.may_load.set()
        async with asyncio.timeout(PATIENCE):
            while await served.metric('bert_reloads_total{result="ok"}') == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
def server(backend: Any) -> DrainingServer:
    """A server that does not run: the test calls its methods."""
    app = create_app(Settings(), backend)
    return DrainingServer(uvicorn.Config(app), app.service.lifecycle, drain_seconds=300.0, hangup=Hangup())


async def test_requests_that_came_before_the_tick_after_a_signal_are_accepted(server: DrainingServer) -> None:
    """The first tick may come at the moment of the signal, with requests still in the sockets."""
    server.handle_exit(signal.SIGTERM, None)
    refusing = []
    for tick in range(2):
        await server.on_tick(tick)
        refusing.append(server.lifecycle.refusing)
    assert refusing == [False, True]


async def test_drain_does_not_wait_for_requests_that_it_refuses(server: DrainingServer) -> None:
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


async def test_metric_of_connections_follows_each_tick(server: DrainingServer) -> None:
    for count in (70, 10):
        server.server_state.connections = set(range(count))  # type: ignore[arg-type]
        await server.on_tick(0)
        metrics = server.config.app.service.metrics.render().decode()  # type: ignore[union-attr]
        assert f"bert_connections {count}.0" in metrics


# A process that is reloaded over and over -----------------------------------------------------------------------


@dataclass
class Reloadable:
    """A service whose sentiment checkpoint is a symbolic link."""

    process: Process
    link: Path

    def point_to(self, directory: Path) -> None:
        """Let the link point elsewhere, without a moment in which it is not there."""
        aside = self.link.with_suffix(".new")
        aside.symlink_to(directory)
        aside.replace(self.link)

    def reloads(self, result: str) -> float:
        return self.process.metric(f'bert_reloads_total{{result="{result}"}}')

    def reload(self, result: str) -> None:
        before = self.reloads(result)
        self.process.send(signal.SIGHUP)
        wait_until(lambda: self.reloads(result) > before)
        assert self.process.metric("bert_last_reload_successful") == (result == "ok")


@pytest.fixture(scope="module")
def light(checkpoints: dict[str, str]) -> dict[str, str]:
    """The environment of a service that starts fast: these tests need no scores."""
    return checkpoints | WITHOUT_TORCH


@pytest.fixture(scope="module")
def reloadable(
    light: dict[str, str], save_sentiment: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reloadable]:
    link = tmp_path_factory.mktemp("links") / "current"
    link.symlink_to(save_sentiment("old"))
    with running(light | {"BERT_SENTIMENT": str(link), "BERT_DTYPE": "float32"}) as process:
        process.until_ready()
        yield Reloadable(process, link)


async def test_sighup_swaps_the_checkpoints_without_dropping_a_request(
    reloadable: Reloadable, save_sentiment: Any, tmp_path: Path
) -> None:
    seen: list[tuple[int, str, str]] = []
    ended = asyncio.Event()

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=reloadable.process.url, timeout=PATIENCE) as client:
            while not ended.is_set():
                answer = await client.post("/sentiment", json={"inputs": ["a film was good"] * 8})
                body, served = answer.json(), answer.status_code == 200
                label = body["results"][0]["predictions"][0]["label"] if served else answer.text
                seen.append((answer.status_code, body.get("model", ""), label))
                await asyncio.sleep(0.01)

    async def until_seen(more: int) -> None:
        before = len(seen)
        async with asyncio.timeout(PATIENCE):
            while len(seen) < before + more:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)

    callers = [asyncio.create_task(ask()) for _ in range(8)]
    await until_seen(20)
    reloadable.point_to(save_sentiment("new", id2label={0: "BAD", 1: "GOOD"}))
    await asyncio.to_thread(reloadable.reload, "ok")
    await until_seen(20)
    (tmp_path / "broken").mkdir()
    reloadable.point_to(tmp_path / "broken")
    await asyncio.to_thread(reloadable.reload, "failed")
    before = len(seen)
    await until_seen(20)
    ended.set()
    await asyncio.gather(*callers)
    assert {(status, model) for status, model, _ in seen} == {(200, "old"), (200, "new")}
    assert all((label in ("BAD", "GOOD")) == (model == "new") for _, model, label in seen)
    assert {model for _, model, _ in seen[before:]} == {"new"}


def test_reload_from_weights_that_were_truncated_in_place_does_no_harm(
    checkpoints: dict[str, str], save_sentiment: Any
) -> None:
    """Tensors may be mapped from the file: the served ones must not be."""
    directory = save_sentiment("overwritten")
    settings = {"BERT_SENTIMENT": str(directory), "BERT_DTYPE": "float32", "BERT_THREADS": "1"}
    with running(checkpoints | settings) as process:
        process.until_ready()
        before = process.ask().json()
        (directory / "model.safetensors").write_bytes(b"")
        Reloadable(process, directory).reload("failed")
        assert process.ask().json() == before
        assert process.get("/health/ready").status_code == 200


def test_reload_whose_process_dies_leaves_the_old_one_serving(reloadable: Reloadable, save_sentiment: Any) -> None:
    reloadable.point_to(save_sentiment("sound"))
    first, failed = reloadable.process.inference_process(), reloadable.reloads("failed")
    reloadable.process.send(signal.SIGHUP)
    os.kill(reloadable.process.inference_process(other_than=first), signal.SIGKILL)
    wait_until(lambda: reloadable.reloads("failed") > failed)
    assert reloadable.process.ask().status_code == 200


def test_signals_to_the_whole_process_group_do_not_end_the_inference_processes(reloadable: Reloadable) -> None:
    """They are needed until the server has drained."""
    for inference in reloadable.process.inference_processes():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(inference, number)
    time.sleep(0.2)
    assert reloadable.process.ask().status_code == 200


# Processes that end ---------------------------------------------------------------------------------------------


COUNTED = """
import gc, multiprocessing
from app.__main__ import serve
from app.inference.process_pool import ProcessPool
from app.server.draining import DrainingServer

shutdown = DrainingServer.shutdown

async def counted(self, sockets=None):
    processes = len(multiprocessing.active_children())
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    backends = sum(isinstance(o, ProcessPool) for o in gc.get_objects())
    print("frozen", frozen, "backends", backends, "processes", processes)
    await shutdown(self, sockets)

DrainingServer.shutdown = counted
serve()
"""


def test_reload_freezes_what_stays_and_frees_what_is_replaced(light: dict[str, str]) -> None:
    with running(light, script=COUNTED) as process:
        process.until_ready()
        assert process.ask().status_code == 200
        process.send(signal.SIGHUP)
        wait_until(lambda: process.metric('bert_reloads_total{result="ok"}'))
        process.send(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    found = re.search(r"frozen (\d+) backends (\d+) processes (\d+)", output)
    assert found is not None, output
    assert int(found[1]) > 30_000
    assert (found[2], found[3]) == ("1", "1")


def test_sigterm_during_a_reload_does_not_wait_for_it(light: dict[str, str]) -> None:
    with running(light) as process:
        process.until_ready()
        first = process.inference_process()
        process.send(signal.SIGHUP)
        second = process.inference_process(other_than=first)
        os.kill(second, signal.SIGSTOP)  # a load that hangs
        process.send(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert "Traceback" not in output
    assert not Path(f"/proc/{second}").exists()


def test_inference_processes_that_die_over_and_over_end_the_service(light: dict[str, str]) -> None:
    """Docker restarts a container only if its process ends."""
    script = "from app import __main__; from app.server import draining\n"
    script += "draining._BROKEN_SECONDS = 1.0; __main__.serve()"
    with running(light | {"BERT_THREADS": "1"}, script=script) as process:
        process.until_ready()
        for _ in range(2):
            (fork,) = process.forks()
            os.kill(fork, signal.SIGKILL)
            wait_until(lambda: process.forks() not in ([], [fork]))  # noqa: B023
            assert process.ask().status_code == 200
        os.kill(*process.forks(), signal.SIGKILL)
        wait_until(lambda: process.get("/health/live").status_code == 503)
        answer = process.ask()
        code, output = process.end()
    assert (answer.status_code, answer.json()["code"]) == (503, "broken")
    assert code == 4, output
    assert "inference processes ended 3 times within 60 s" in output.splitlines()[-1]


def test_inference_process_that_hangs_is_replaced(light: dict[str, str]) -> None:
    script = "from app import __main__; from app.batching import lifecycle\n"
    script += "lifecycle.MIN_STALL_SECONDS = 4.0; __main__.serve()"
    environ = light | {"BERT_THREADS": "1", "BERT_REQUEST_TIMEOUT_MS": "1000"}
    with running(environ, script=script) as process:
        process.until_ready()
        (fork,) = process.forks()
        os.kill(fork, signal.SIGSTOP)
        assert process.ask().status_code == 504
        wait_until(lambda: process.get("/health/ready").json().get("code") == "stalled")
        assert process.get("/health/live").status_code == 200
        wait_until(lambda: process.get("/health/ready").status_code == 200)
        wait_until(lambda: process.ask().status_code == 200)
        lines = iter(process.line, "")
        logged = [next(lines)]
        while "no longer stalled" not in logged[-1]:
            logged.append(next(lines))
        process.send(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert sum("stalled: a batch has been running for" in line for line in logged) == 1


INHERITS_ORPHANS = """
import ctypes
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
from app.__main__ import serve
serve()
"""


@pytest.mark.parametrize("ends", ["a fork", "the fork server"])
def test_inference_processes_that_a_container_inherits_are_no_zombies(light: dict[str, str], ends: str) -> None:
    """Process 1 of a container is the parent of the forks that have lost theirs."""
    with running(light | {"BERT_THREADS": "2"}, script=INHERITS_ORPHANS) as process:
        process.until_ready()
        for reloads in range(2):
            server, forks = process.inference_process(), process.forks()
            os.kill(forks[0] if ends == "a fork" else server, signal.SIGKILL)
            wait_until(lambda: len(process.forks()) == 2 and forks[0] not in process.forks())  # noqa: B023
            wait_until(lambda: process.get("/health/ready").status_code == 200)
            process.send(signal.SIGHUP)
            wait_until(lambda: process.metric('bert_reloads_total{result="ok"}') > reloads)  # noqa: B023
        # Zombies would be further children of the fork server's parent. The other child is multiprocessing's own.
        wait_until(lambda: len(children(process.process.pid)) == 2)


@pytest.mark.parametrize("loading", [True, False], ids=["loading", "ready"])
def test_inference_processes_end_with_the_server_that_is_killed(light: dict[str, str], loading: bool) -> None:
    with running(light) as process:
        if not loading:
            process.until_ready()
        computing = process.inference_processes()
        process.process.kill()
        wait_until(lambda: not any(Path(f"/proc/{inference}").exists() for inference in computing))


@pytest.mark.parametrize("hangs", [False, True])
def test_sigterm_while_the_inference_process_loads_exits_with_0(light: dict[str, str], hangs: bool) -> None:
    with running(light) as process:
        inference = process.inference_process()
        if hangs:
            os.kill(inference, signal.SIGSTOP)
        while "listening on" not in (line := process.line()):
            assert line
        assert process.get("/health/live").status_code == 200
        process.send(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert "Traceback" not in output
    assert not Path(f"/proc/{inference}").exists()


def test_second_ctrl_c_ends_a_service_whose_batch_hangs(light: dict[str, str]) -> None:
    with running(light | {"BERT_DRAIN_SECONDS": "300"}) as process:
        process.until_ready()
        inference = process.inference_process()
        for fork in process.forks():
            os.kill(fork, signal.SIGSTOP)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(process.url + "/sentiment", json=GOOD, timeout=1)
        process.send(signal.SIGINT)
        wait_until(lambda: process.get("/health/ready").json().get("code") == "draining")
        process.send(signal.SIGINT)
        began = time.monotonic()
        _, output = process.end()
        assert time.monotonic() - began < 60  # not after BERT_DRAIN_SECONDS
        assert "ERROR" not in output
        assert not Path(f"/proc/{inference}").exists()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux which signals are handled")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_first_second_exits_with_0(light: dict[str, str], number: signal.Signals) -> None:
    """The first process of a container gets only the signals that it handles."""

    def is_handled() -> bool:
        found = re.search(r"SigCgt:\s+([0-9a-f]+)", status.read_text())
        return found is not None and bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)

    with running(light) as process:
        status = Path(f"/proc/{process.process.pid}/status")
        wait_until(is_handled)
        process.send(number)
        code, output = process.end()
    assert (code, "Traceback" in output) == (0, False), output


HUNG_UP_AT_THE_FIRST_IMPORT = """
import os, signal, sys

class HangUp:
    def find_spec(self, name, path=None, target=None):
        if name == "app.errors":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, HangUp())
from app.__main__ import serve
serve()
"""


def test_sighup_in_the_first_second_is_ignored() -> None:
    with running({"BERT_PORT": "none"}, script=HUNG_UP_AT_THE_FIRST_IMPORT) as process:
        code, output = process.end()
    assert (code, "BERT_PORT=none: " in output) == (1, True), output


def test_ctrl_c_of_a_terminal_exits_with_0(light: dict[str, str]) -> None:
    """It reaches all processes of the terminal."""
    with running(light) as process:
        inference = process.inference_process()
        process.send(signal.SIGINT)
        os.kill(inference, signal.SIGINT)
        code, output = process.end()
    assert (code, "Traceback" in output) == (0, False), output
