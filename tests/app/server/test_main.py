"""A real `bert-serve` process on a real port, with real weights."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from app.api.application import create_app
from app.server.main import DrainingServer
from app.settings import Settings
from tests.app.process import PATIENCE, Process, children, running

JSON_HEAD = b"POST /sentiment HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GOOD = {"inputs": "good"}
PAIR = {"text": "a film", "text_pair": "it was good"}


@pytest.fixture(scope="module")
def service(checkpoints: dict[str, str]) -> Iterator[Process]:
    with running(checkpoints | {"BERT_THREADS": "2"}) as process:
        process.until_ready()
        yield process


@pytest.fixture
async def client(service: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE) as made:
        yield made


async def test_three_tasks_answer(client: httpx.AsyncClient) -> None:
    filled = await client.post("/fill-mask", json={"inputs": "The film was [MASK]."})
    next_one = await client.post("/next-sentence", json={"inputs": PAIR})
    felt = await client.post("/sentiment", json={"inputs": ["good", "bad"]})
    assert [answer.status_code for answer in (filled, next_one, felt)] == [200] * 3
    assert len(filled.json()["results"][0]["masks"][0]["predictions"]) == 5
    scores = [p["score"] for p in next_one.json()["results"][0]["predictions"]]
    assert sum(scores) == pytest.approx(1, abs=1e-3)
    assert {p["label"] for p in felt.json()["results"][0]["predictions"]} == {"POSITIVE", "NEGATIVE"}


async def test_concurrent_requests_share_forward_passes(client: httpx.AsyncClient) -> None:
    async def batches_of_one() -> float:
        lines = (await client.get("/metrics")).text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith('bert_batch_size_bucket{le="1.0"}')))

    before = await batches_of_one()
    large = {"inputs": ["a film was good and great. " * 8] * 512}  # for as long, no process is free
    answers = await asyncio.gather(
        *(client.post("/sentiment", json=body) for body in [*[large] * 4, *[{"inputs": "good"}] * 60])
    )
    assert {answer.status_code for answer in answers} == {200}
    assert await batches_of_one() - before < 40


async def test_answers_do_not_depend_on_neighbours(client: httpx.AsyncClient) -> None:
    bodies = [{"inputs": f"the film {'was ' * n}[MASK]", "parameters": {"top_k": 1}} for n in range(24)]
    alone = [(await client.post("/fill-mask", json=body)).json() for body in bodies]
    together = [a.json() for a in await asyncio.gather(*(client.post("/fill-mask", json=body) for body in bodies))]
    for one, other in zip(alone, together, strict=True):
        (first,), (second,) = (body["results"][0]["masks"][0]["predictions"] for body in (one, other))
        assert first["token"] == second["token"]
        assert first["score"] == pytest.approx(second["score"], abs=1e-4)


async def test_short_texts_pass_very_long_ones(client: httpx.AsyncClient) -> None:
    """Half a megabyte is tokenized in a thread that leaves the interpreter to others."""
    long = {"inputs": "a film was good and great. " * 20_000, "parameters": {"truncate": True}}
    slow = [asyncio.create_task(client.post("/sentiment", json=long)) for _ in range(2)]
    passed = 0
    while not all(task.done() for task in slow):
        assert (await client.post("/sentiment", json=GOOD)).status_code == 200
        passed += 1
    answers = [await task for task in slow]
    assert [answer.status_code for answer in answers] == [200] * 2
    assert all(answer.json()["results"][0]["truncated"] for answer in answers)
    assert passed > 3  # on however busy a machine


async def test_oversized_body_is_refused_before_it_is_sent(service: Process) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(JSON_HEAD + b"Content-Length: 99999999999\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()
    await writer.wait_closed()


def resident_bytes(process: Process) -> int:
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    return int(line) * 1024


async def test_stalled_uploads_take_bounded_memory(checkpoints: dict[str, str]) -> None:
    size, count = 2 * 1024 * 1024, 100

    async def stall(port: int) -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(JSON_HEAD + b"Content-Length: %d\r\n\r\n" % size + b" " * (size - 1))
        await writer.drain()
        try:
            async with asyncio.timeout(2):
                return await reader.readline(), writer
        except TimeoutError:
            return b"", writer

    with running(checkpoints) as process:
        process.until_ready()
        before = resident_bytes(process)
        stalled = await asyncio.gather(*(stall(process.port) for _ in range(count)))
        grown = resident_bytes(process) - before
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE) as client:
            small = await client.post("/sentiment", json=GOOD)
            refused = await client.post("/sentiment", json={"inputs": ["good"] * 20_000})
            counted = (await client.get("/metrics")).text
            for _, writer in stalled:
                writer.close()
            freed = refused
            while freed.status_code == 429:
                freed = await client.post("/sentiment", json={"inputs": ["good"] * 20_000})
    statuses = [line.split()[1] for line, _ in stalled if line]
    assert statuses == [b"429"] * (count - 16)  # 32 MiB of 2 MiB each are being received
    assert grown < 100e6
    assert small.status_code == 200
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_bytes")
    assert refused.headers["retry-after"] == "1"
    assert "bert_requests_refused_total 85.0" in counted
    assert freed.json()["code"] == "too_large"  # more inputs than a request may carry: the body was read


async def test_caller_that_hangs_up_does_no_harm(service: Process, client: httpx.AsyncClient) -> None:
    body = json.dumps({"inputs": ["a film was good and great"] * 500}).encode()
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await client.post("/sentiment", json={"inputs": "good"})).status_code == 200


async def test_real_hugging_face_client_reads_the_answers(service: Process) -> None:
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    def ask() -> tuple[Any, Any, Any, Any]:
        masks = InferenceClient(model=service.url + "/hf/fill-mask", token="x")
        labels = InferenceClient(model=service.url + "/hf/text-classification", token="x")
        with pytest.raises(HfHubHTTPError) as refused:
            masks.fill_mask("no mask here")
        return (
            masks.fill_mask("The film was [MASK]."),
            masks.fill_mask("The film was [MASK].", targets=["good", "bad"], top_k=1),
            labels.text_classification("The film was good."),
            refused.value,
        )

    filled, targeted, labelled, error = await asyncio.to_thread(ask)
    assert [entry.sequence for entry in filled] == [f"The film was {e.token_str}.".replace(" ##", "") for e in filled]
    assert len(filled) == 5
    assert targeted[0].token_str in ("good", "bad")
    assert len(targeted) == 1
    assert {entry.label for entry in labelled} == {"POSITIVE", "NEGATIVE"}
    assert "no [MASK]" in str(error)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sigterm_answers_what_was_accepted_and_exits_0(checkpoints: dict[str, str], workers: str) -> None:
    with running(checkpoints, "--workers", workers) as process:
        process.until_ready()
        limits = httpx.Limits(max_connections=120)
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE, limits=limits) as client:
            body = {"inputs": ["a film was good and great"] * 20}
            asked = [asyncio.create_task(client.post("/sentiment", json=body)) for _ in range(100)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)  # all have been sent by then
            process.process.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        code, output = await asyncio.to_thread(process.end)
    assert code == 0, output
    assert "Traceback" not in output


def test_sigterm_leaves_no_request_of_a_pipeline_without_an_answer(checkpoints: dict[str, str]) -> None:
    """The first is being computed; the others have come, and wait for their turn."""
    head = JSON_HEAD + b"Content-Length: 17\r\n\r\n"
    with running(checkpoints) as process:
        process.until_ready()
        inference = process.inference_process()
        os.kill(inference, signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE) as connection:
            connection.sendall((head + b'{"inputs":"good"}') * 3)
            time.sleep(0.2)
            process.process.send_signal(signal.SIGTERM)
            while httpx.get(process.url + "/health/ready").status_code == 200:
                time.sleep(0.05)
            time.sleep(0.3)
            os.kill(inference, signal.SIGCONT)
            received = b""
            while part := connection.recv(65_536):
                received += part
        code, output = process.end()
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"503", b"503"], received
    assert received.lower().count(b"connection: close") == 1
    assert code == 0, output


async def test_while_draining_the_port_answers_503(checkpoints: dict[str, str]) -> None:
    with running(checkpoints) as process:
        process.until_ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        head = JSON_HEAD + b"Content-Length: 17\r\n\r\n"
        writer.write(head + b'{"inputs":')  # an accepted request whose body is on its way
        await writer.drain()
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE) as client:
            await client.get("/health/live")  # by now the head has been read
            process.process.send_signal(signal.SIGTERM)
            while (ready := await client.get("/health/ready")).status_code == 200:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            assert (ready.status_code, ready.json()["code"]) == (503, "draining")
            assert ready.headers["connection"] == "close"
            while (late := await client.post("/sentiment", json=GOOD)).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (late.status_code, late.json()["code"]) == (503, "draining")
            assert "retry-after" in late.headers
        writer.write(b'"good"}')
        await writer.drain()
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 200")
        code, output = await asyncio.to_thread(process.end)
    assert code == 0, output


async def test_any_worker_tells_the_metrics_of_all(checkpoints: dict[str, str]) -> None:
    counted = 'bert_requests_total{status="200",task="sentiment"} 40.0'
    with running(checkpoints, "--workers", "2") as process:
        process.until_ready()
        for _ in range(40):
            async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE) as client:
                assert (await client.post("/sentiment", json=GOOD)).status_code == 200
        for _ in range(20):
            async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE) as client:
                lines = (await client.get("/metrics")).text.splitlines()
            assert counted in lines
            assert "bert_queue_requests 0.0" in lines
            assert "bert_workers 2.0" in lines
            assert 'bert_reloads_total{result="failed"} 0.0' in lines
            assert sum(line.startswith("bert_batch_size_count ") for line in lines) == 1


async def test_overload_is_refused_at_once_and_what_is_accepted_is_answered(
    checkpoints: dict[str, str],
) -> None:
    body = {"inputs": ["a film was good and great"] * 50}
    with running(checkpoints | {"BERT_MAX_QUEUE_TOKENS": "5000"}) as process:
        process.until_ready()
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE, limits=limits) as client:
            for inference in process.inference_processes():
                os.kill(inference, signal.SIGSTOP)
            asked = [asyncio.create_task(client.post("/sentiment", json=body)) for _ in range(400)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)  # nobody is answered, but refused
            for inference in process.inference_processes():
                os.kill(inference, signal.SIGCONT)
            answers = await asyncio.gather(*asked)
            statuses = [answer.status_code for answer in answers]
            lines = (await client.get("/metrics")).text.splitlines()
            assert (await client.post("/sentiment", json=GOOD)).status_code == 200
    assert set(statuses) == {200, 429}
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 429)
    assert "bert_queue_requests 0.0" in lines
    assert "bert_queue_tokens 0.0" in lines
    assert f"bert_requests_refused_total {float(statuses.count(429))}" in lines


def point_to(link: Path, directory: Path) -> None:
    """Let a symbolic link point elsewhere, without a moment in which it is not there."""
    aside = link.with_suffix(".new")
    aside.symlink_to(directory)
    aside.replace(link)


def until_all_listen(process: Process, workers: int) -> None:
    process.until_ready()
    end = time.monotonic() + PATIENCE
    while len(listeners(process.port)) < workers:
        assert time.monotonic() < end
        time.sleep(0.02)


def reloads(url: str, result: str) -> float:
    """Of the worker that happens to answer."""
    lines = httpx.get(url + "/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if f'bert_reloads_total{{result="{result}"}}' in line))


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sighup_swaps_the_checkpoints_without_dropping_a_request(
    checkpoints: dict[str, str], save_sentiment: Any, tmp_path: Path, workers: str
) -> None:
    old, new = save_sentiment("old"), save_sentiment("new", id2label={0: "BAD", 1: "GOOD"})
    link = tmp_path / "current"
    point_to(link, old)
    seen: list[tuple[int, str, str]] = []
    ended = asyncio.Event()

    async def ask(url: str) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # a connection for each: either worker may answer
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
            while not ended.is_set():
                answer = await client.post("/sentiment", json={"inputs": ["a film was good"] * 8})
                body, served = answer.json(), answer.status_code == 200
                label = body["results"][0]["predictions"][0]["label"] if served else answer.text
                seen.append((answer.status_code, body.get("model", ""), label))

    with running(checkpoints | {"BERT_SENTIMENT": str(link)}, "--workers", workers) as process:
        await asyncio.to_thread(until_all_listen, process, int(workers))
        callers = [asyncio.create_task(ask(process.url)) for _ in range(8)]
        async with asyncio.timeout(PATIENCE):
            while len(seen) < 50:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            point_to(link, new)
            process.process.send_signal(signal.SIGHUP)
            while {model for _, model, _ in seen[-50:]} != {"new"}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            (tmp_path / "broken").mkdir()
            point_to(link, tmp_path / "broken")
            process.process.send_signal(signal.SIGHUP)
            while not await asyncio.to_thread(reloads, process.url, "failed"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            before = len(seen)
            while len(seen) < before + 50:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        ended.set()
        await asyncio.gather(*callers)
        process.process.send_signal(signal.SIGTERM)
        code, output = await asyncio.to_thread(process.end)
    assert {(status, model) for status, model, _ in seen} == {(200, "old"), (200, "new")}
    assert all((label in ("BAD", "GOOD")) == (model == "new") for _, model, label in seen)
    assert {model for _, model, _ in seen[before:]} == {"new"}
    assert code == 0, output
    assert f"not reloaded: {link}/config.json: is missing" in output
    assert output.count("reloaded: tiny-pretrained, new") == int(workers)
    assert "Traceback" not in output


COUNTED = """
import atexit, gc, multiprocessing
from app.server.main import main as server
from app.__main__ import serve
from app.inference.process_pool import RemoteBackend

draining = server.DrainingServer.shutdown

async def shutdown(self, sockets=None):
    processes = len(multiprocessing.active_children())
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    backends = sum(isinstance(o, RemoteBackend) for o in gc.get_objects())
    print("frozen", frozen, "backends", backends, "processes", processes)
    await draining(self, sockets)

server.DrainingServer.shutdown = shutdown
serve()
"""


def test_what_stays_is_not_searched_for_garbage_and_what_is_replaced_is_let_go(
    checkpoints: dict[str, str],
) -> None:
    with running(checkpoints, script=COUNTED) as process:
        process.until_ready()
        assert httpx.post(process.url + "/sentiment", json={"inputs": "good"}).status_code == 200
        process.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while not reloads(process.url, "ok"):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    found = re.search(r"frozen (\d+) backends (\d+) processes (\d+)", output)
    assert found is not None, output
    assert int(found[1]) > 30_000
    assert (found[2], found[3]) == ("1", "1")


@pytest.mark.parametrize("workers", [1, 2])
def test_command_reloads_the_service_on_a_port(checkpoints: dict[str, str], workers: int) -> None:
    with running(checkpoints, "--workers", str(workers)) as process:
        until_all_listen(process, workers)
        command = [sys.executable, "-m", "app", "reload", "--port", str(process.port)]
        subprocess.run(command, cwd=Path(__file__).parents[3], check=True)
        end = time.monotonic() + PATIENCE
        while reloads(process.url, "ok") < workers:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert output.count("app.scheduling.engine: reloaded: ") == workers


def test_command_never_ends_a_process_that_knows_no_reload() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "app", "reload", "--port", port],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"bert-serve: no service that can be told listens on port {port}\n"


async def test_weights_that_are_overwritten_in_place_do_no_harm(
    checkpoints: dict[str, str], save_sentiment: Any
) -> None:
    """Tensors may be mapped from the file: what is served must not be."""
    directory = save_sentiment()
    environ = checkpoints | {"BERT_SENTIMENT": str(directory), "BERT_DTYPE": "float32"}
    with running(environ) as process:
        process.until_ready()
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE) as client:
            before = (await client.post("/sentiment", json=GOOD)).json()
            (directory / "model.safetensors").write_bytes(b"")
            process.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(PATIENCE):
                while not await asyncio.to_thread(reloads, process.url, "failed"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (await client.post("/sentiment", json=GOOD)).json() == before
            assert (await client.get("/health/ready")).status_code == 200


def metrics_folder(workers: list[int]) -> Path:
    environ = Path(f"/proc/{workers[0]}/environ").read_bytes().split(b"\0")
    (folder,) = [value for value in environ if value.startswith(b"PROMETHEUS_MULTIPROC_DIR=")]
    return Path(folder.partition(b"=")[2].decode())


def test_worker_that_cannot_start_again_is_tried_until_it_can(checkpoints: dict[str, str], save_sentiment: Any) -> None:
    directory = save_sentiment()
    config, away = directory / "config.json", directory / "config.away"
    with running(checkpoints | {"BERT_SENTIMENT": str(directory)}, "--workers", "2") as process:
        until_all_listen(process, 2)
        before = set(children(process.process.pid))
        config.rename(away)
        os.kill(max(listeners(process.port)), signal.SIGKILL)
        tried: set[int] = set()
        end = time.monotonic() + PATIENCE
        while len(tried) < 2:  # the first has failed, and did not end the service
            assert time.monotonic() < end
            tried |= set(children(process.process.pid)) - before
            time.sleep(0.02)
        assert httpx.post(f"{process.url}/sentiment", json=GOOD, timeout=PATIENCE).status_code == 200
        away.rename(config)
        until_all_listen(process, 2)
        serving = children(process.process.pid)
        left = {int(file.stem.rpartition("_")[2]) for file in metrics_folder(serving).glob("*.db")}
        assert left - before <= set(serving)  # who never began leaves nothing
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert "ended with -9; starting another in 0 s" in output
    assert f"bert-serve: {directory}/config.json: is missing" in output
    assert "ended with 3; starting another in 1 s" in output
    assert "Traceback" not in output


def test_workers_do_not_outlive_their_parent(checkpoints: dict[str, str]) -> None:
    with running(checkpoints, "--workers", "2") as process:
        until_all_listen(process, 2)
        process.process.kill()
        end = time.monotonic() + PATIENCE
        while listeners(process.port):
            assert time.monotonic() < end
            time.sleep(0.02)


async def test_worker_among_several_that_is_ended_while_it_loads_does_not_wait_for_that(
    checkpoints: dict[str, str], backend: Any
) -> None:
    backend.may_load.clear()
    app = create_app(Settings.read(checkpoints | {"BERT_WORKERS": "2"}), backend)
    server = DrainingServer(uvicorn.Config(app), app.state.engine, drain_seconds=1.0)
    try:
        async with asyncio.timeout(PATIENCE):
            started = asyncio.create_task(app.router.lifespan_context(app).__aenter__())
            await asyncio.sleep(0.2)
            assert not started.done()
            server.handle_exit(signal.SIGTERM, None)
            await started
    finally:
        backend.may_load.set()
        await app.state.engine.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_wrong_checkpoint_ends_with_one_clear_line(checkpoints: dict[str, str], workers: str) -> None:
    wrong = checkpoints | {"BERT_SENTIMENT": checkpoints["BERT_PRETRAINED"]}
    with running(wrong, "--workers", workers) as process:
        code, output = process.end()
    assert code == 3
    assert f"bert-serve: {wrong['BERT_SENTIMENT']}: is no sequence classifier" in output
    assert "Traceback" not in output


def test_problem_type_that_is_not_supported_ends_with_one_clear_line(
    checkpoints: dict[str, str], save_sentiment: Any
) -> None:
    directory = save_sentiment("stars")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"problem_type": "ranking"}))
    with running(checkpoints | {"BERT_SENTIMENT": str(directory)}) as process:
        code, output = process.end()
    assert code == 3
    assert f"bert-serve: {directory}/config.json: unsupported problem_type 'ranking'" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BERT_MAX_QUEUE_TOKENS", "many", "BERT_MAX_QUEUE_TOKENS='many'"),
        ("BERT_API_KEYS", "", "BERT_API_KEYS=***: Value error, names nothing: unset it"),
    ],
)
def test_impossible_setting_ends_with_one_clear_line(
    checkpoints: dict[str, str], name: str, value: str, message: str
) -> None:
    with running(checkpoints | {name: value}) as process:
        code, output = process.end()
    assert code == 1
    assert output.startswith("bert-serve: " + message)
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_taken_port_ends_with_an_error(service: Process, checkpoints: dict[str, str], workers: str) -> None:
    with running(checkpoints, "--workers", workers, "--port", str(service.port)) as process:
        code, output = process.end()
    assert code != 0
    assert "address already in use" in output.lower()
    assert "Traceback" not in output


_SERVING = """
import os, sys
from app.server.main import main as server
from app.settings import Settings
"""
_REPLACED = _SERVING + "sys.exit(server.run(Settings.read(os.environ), replaced=True))"
_ALONE = _SERVING + "server._BROKEN_SECONDS = 1.0; sys.exit(server.run(Settings.read(os.environ)))"


async def test_what_came_before_the_tick_after_a_signal_is_accepted(checkpoints: dict[str, str]) -> None:
    """The first tick may come in the very moment of the signal, with requests still in the sockets."""
    app = create_app(Settings.read(checkpoints))
    server = DrainingServer(uvicorn.Config(app), app.state.engine, drain_seconds=1.0)
    server.handle_exit(signal.SIGTERM, None)
    refusing = []
    for tick in range(2):
        await server.on_tick(tick)
        refusing.append(app.state.engine.refusing)
    assert refusing == [False, True]


@pytest.mark.parametrize("script", [_REPLACED, _ALONE], ids=["replaced by another", "alone"])
async def test_process_whose_inference_process_dies_answers_and_ends(checkpoints: dict[str, str], script: str) -> None:
    """So that it is replaced, and does not refuse its share of the connections for ever."""
    with running(checkpoints, script=script) as process:
        await asyncio.to_thread(process.until_ready)
        for inference in process.inference_processes():
            os.kill(inference, signal.SIGSTOP)  # so that nobody is answered before it dies
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE) as client:
            asked = [asyncio.create_task(client.post("/sentiment", json={"inputs": "good"})) for _ in range(20)]
            until = time.monotonic() + PATIENCE
            while "bert_queue_requests 20.0" not in (await client.get("/metrics")).text:
                assert time.monotonic() < until
                await asyncio.sleep(0.02)
            os.kill(process.inference_process(), signal.SIGKILL)
            stranded = await asyncio.gather(*asked)
        code, output = await asyncio.to_thread(process.end)
    assert {(answer.status_code, answer.json()["code"]) for answer in stranded} == {(503, "broken")}
    assert code == 4, output
    assert "the inference process ended with exit code -9" in output


def test_inference_process_that_dies_while_nobody_asks_turns_health_red(checkpoints: dict[str, str]) -> None:
    with running(checkpoints) as process:
        process.until_ready()
        os.kill(process.inference_process(), signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while httpx.get(process.url + "/health/live").status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert httpx.get(process.url + "/health/ready").status_code == 503
        assert httpx.post(process.url + "/sentiment", json={"inputs": "good"}).json()["code"] == "broken"


def test_reload_mends_a_service_that_hangs(checkpoints: dict[str, str]) -> None:
    with running(checkpoints | {"BERT_REQUEST_TIMEOUT_MS": "1000"}) as process:
        process.until_ready()
        hanging = process.inference_processes()
        for inference in hanging:
            os.kill(inference, signal.SIGSTOP)
        asked = {"inputs": ["good"] * 100}
        assert httpx.post(process.url + "/sentiment", json=asked).status_code == 504
        process.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while httpx.post(process.url + "/sentiment", json=asked, timeout=PATIENCE).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.1)
        while any(Path(f"/proc/{inference}").exists() for inference in hanging):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert httpx.get(process.url + "/health/ready").status_code == 200


def test_signals_to_the_whole_group_leave_the_inference_process_to_the_draining_one(
    checkpoints: dict[str, str],
) -> None:
    with running(checkpoints) as process:
        process.until_ready()
        for inference in process.inference_processes():
            for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(inference, sig)
        time.sleep(0.2)
        assert httpx.post(process.url + "/sentiment", json={"inputs": "good"}).status_code == 200


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["loading", "later"])
def test_inference_processes_end_with_the_one_they_work_for(checkpoints: dict[str, str], seconds: float) -> None:
    with running(checkpoints) as process:
        if seconds:
            process.until_ready()
        computing = process.inference_processes()
        process.process.kill()
        until = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{inference}").exists() for inference in computing):
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize("hangs", [False, True])
def test_sigterm_while_the_inference_process_loads_ends_well(checkpoints: dict[str, str], hangs: bool) -> None:
    with running(checkpoints) as process:
        inference = process.inference_process()
        if hangs:
            os.kill(inference, signal.SIGSTOP)
        while "Application startup complete" not in (line := process.line()):
            assert line
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert "Traceback" not in output
    assert not Path(f"/proc/{inference}").exists()


def test_sigterm_during_a_reload_does_not_wait_for_it(checkpoints: dict[str, str]) -> None:
    with running(checkpoints) as process:
        process.until_ready()
        first = process.inference_process()
        process.process.send_signal(signal.SIGHUP)
        second = process.inference_process(other_than=first)
        os.kill(second, signal.SIGSTOP)  # a load that hangs
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert "Traceback" not in output
    assert not Path(f"/proc/{second}").exists()


def test_reload_whose_process_dies_leaves_the_old_one_serving(checkpoints: dict[str, str]) -> None:
    with running(checkpoints) as process:
        process.until_ready()
        first = process.inference_process()
        process.process.send_signal(signal.SIGHUP)
        os.kill(process.inference_process(other_than=first), signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while not reloads(process.url, "failed"):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert httpx.post(process.url + "/sentiment", json={"inputs": "good"}).status_code == 200
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert "not reloaded: the inference process ended with exit code -9" in output


def test_second_ctrl_c_ends_a_service_whose_batch_hangs(checkpoints: dict[str, str]) -> None:
    with running(checkpoints) as process:
        process.until_ready()
        inference = process.inference_process()
        os.kill(inference, signal.SIGSTOP)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(process.url + "/sentiment", json={"inputs": "good"}, timeout=1)
        for _ in range(2):
            process.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        began = time.monotonic()
        process.end()
        assert time.monotonic() - began < 30  # it would wait for ever
        assert not Path(f"/proc/{inference}").exists()


def test_second_ctrl_c_counts_although_the_parent_sends_sigterm_with_it(checkpoints: dict[str, str]) -> None:
    app = create_app(Settings.read(checkpoints))
    server = DrainingServer(uvicorn.Config(app), app.state.engine, drain_seconds=1.0)
    for sig in (signal.SIGINT, signal.SIGTERM):
        server.handle_exit(sig, None)
    assert not server.force_exit
    for sig in (signal.SIGINT, signal.SIGTERM):
        server.handle_exit(sig, None)
    assert server.force_exit
    assert server.should_exit


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_address_of_ipv6_is_every_address(checkpoints: dict[str, str], workers: str) -> None:
    with running(checkpoints | {"BERT_HOST": "::", "BERT_WORKERS": workers}) as process:
        process.until_ready()  # by 127.0.0.1
        assert httpx.get(f"http://[::1]:{process.port}/health/live").status_code == 200


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux which signals are handled")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_signal_ends_it_well_from_the_first_second(
    checkpoints: dict[str, str], workers: str, number: signal.Signals
) -> None:
    """The first process of a container gets only the signals that it handles."""
    with running(checkpoints, "--workers", workers) as process:
        status = Path(f"/proc/{process.process.pid}/status")
        until = time.monotonic() + PATIENCE
        while not handles(signal.SIGTERM, status.read_text()) and time.monotonic() < until:
            time.sleep(0.001)
        process.process.send_signal(number)
        code, output = process.end()
    assert (code, "Traceback" in output) == (0, False), output


def handles(signal_number: int, status: str) -> bool:
    found = re.search(r"SigCgt:\s+([0-9a-f]+)", status)
    return found is not None and bool(int(found[1], 16) >> (signal_number - 1) & 1)
