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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.server import main
from tests.app.process import PATIENCE, WITHOUT_TORCH, Process, running
from tests.app.server.conftest import StartServer

JSON_HEAD = b"POST /sentiment HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GOOD = {"inputs": "good"}


@pytest.fixture
async def client(service: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE) as made:
        yield made


async def test_short_texts_pass_slow_ones(client: httpx.AsyncClient) -> None:
    """Long words, which take a second to tokenize, are tokenized in a thread that leaves the interpreter to others."""
    long = {"inputs": [f"{'x' * 100} " * 96] * 8, "parameters": {"truncate": True}}
    slow = [asyncio.create_task(client.post("/sentiment", json=long)) for _ in range(2)]
    passed = 0
    while not all(task.done() for task in slow):
        assert (await client.post("/sentiment", json=GOOD)).status_code == 200
        passed += 1
    answers = [await task for task in slow]
    assert [answer.status_code for answer in answers] == [200] * 2
    assert all(answer.json()["results"][0]["truncated"] for answer in answers)
    assert passed > 5  # 2 or 3 if they wait


def resident_bytes(process: Process) -> int:
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    return int(line) * 1024


async def test_stalled_uploads_take_bounded_memory(service: Process, client: httpx.AsyncClient) -> None:
    size, count = 2 * 1024 * 1024, 100

    async def upload() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(JSON_HEAD + b"Content-Length: %d\r\n\r\n" % size + b" " * (size - 1))
        await writer.drain()
        return reader, writer

    too_many = {"inputs": ["good"] * 20_000}
    before, refused_before = resident_bytes(service), service.metric("bert_requests_refused_total")
    stalled = await asyncio.gather(*(upload() for _ in range(count)))
    answers = [asyncio.ensure_future(reader.readline()) for reader, _ in stalled]
    first = asyncio.as_completed(answers, timeout=PATIENCE)
    statuses = [(await next(first)).split()[1] for _ in range(count - 16)]  # 32 MiB of 2 MiB each are being received
    grown = resident_bytes(service) - before
    small = await client.post("/sentiment", json=GOOD)
    refused = await client.post("/sentiment", json=too_many)
    counted = service.metric("bert_requests_refused_total") - refused_before
    for _, writer in stalled:
        writer.close()
    freed = refused
    while freed.status_code == 429:
        freed = await client.post("/sentiment", json=too_many)
    await asyncio.gather(*answers)
    assert statuses == [b"429"] * (count - 16)
    assert grown < 100e6
    assert small.status_code == 200
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_bytes")
    assert refused.headers["retry-after"] == "1"
    assert counted == 85
    assert freed.json()["code"] == "too_large"  # more inputs than a request may carry: the body was read


async def test_overload_is_refused_at_once_and_accepted_requests_are_answered(
    start_server: StartServer, backend: Any
) -> None:
    body = {"inputs": ["a film was good and great"] * 50}
    async with start_server(max_queue_tokens=5000) as served:
        backend.gate.clear()
        asked = [asyncio.create_task(served.client.post("/sentiment", json=body)) for _ in range(100)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)  # refused: none can be answered
        backend.gate.set()
        answers = await asyncio.gather(*asked)
        statuses = [answer.status_code for answer in answers]
        assert await served.metric("bert_queue_requests") == 0
        assert await served.metric("bert_queue_tokens") == 0
        assert await served.metric("bert_requests_refused_total") == statuses.count(429)
        assert (await served.client.post("/sentiment", json=GOOD)).status_code == 200
    assert set(statuses) == {200, 429}
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 429)


async def test_real_hugging_face_client_reads_the_answers(service: Process) -> None:
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    def ask() -> tuple[Any, Any, Any, Any, Any]:
        masks = InferenceClient(model=service.url + "/hf/fill-mask", token="x")
        labels = InferenceClient(model=service.url + "/hf/text-classification", token="x")
        with pytest.raises(HfHubHTTPError) as refused:
            masks.fill_mask("no mask here")
        return (
            masks.fill_mask("The film was [MASK]."),
            masks.fill_mask("The film was [MASK]. " + "It was good. " * 400, top_k=2),
            masks.fill_mask("The film was [MASK].", targets=["good", "bad"], top_k=1),
            labels.text_classification("The film was good. " * 400),  # more tokens than any BERT reads
            refused.value,
        )

    filled, cut, targeted, labelled, error = await asyncio.to_thread(ask)
    assert [entry.sequence for entry in filled] == [f"The film was {e.token_str}.".replace(" ##", "") for e in filled]
    assert (len(filled), len(cut)) == (5, 2)
    assert targeted[0].token_str in ("good", "bad")
    assert len(targeted) == 1
    assert {entry.label for entry in labelled} == {"POSITIVE", "NEGATIVE"}
    assert "no [MASK]" in str(error)


# Starts and ends ------------------------------------------------------------------------------------------------


def errors_of(output: str) -> list[str]:
    """What a person has to read."""
    return re.findall(r"^(?:bert-serve: | *File |Traceback|.* (?:ERROR|CRITICAL) ).*", output, re.MULTILINE)


def broken_weights(directory: Path) -> dict[str, str]:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return {"BERT_SENTIMENT": str(directory)}


@pytest.mark.parametrize(
    ("environ", "code", "message"),
    [
        ({"BERT_SENTIMENT": "/nowhere"}, 3, "/nowhere: is not a directory; to download a model, run: hf download "),
        (broken_weights, 3, "model.safetensors: "),
        ({"BERT_DEVICE": "cuda:63"}, 3, "BERT_DEVICE=cuda:63: "),
        ({"BERT_HOST": "nowhere.invalid"}, 3, "BERT_HOST=nowhere.invalid, BERT_PORT="),
        ({"BERT_HOST": "two..dots"}, 3, "BERT_HOST=two..dots, BERT_PORT="),
        ({"BERT_HOST": "192.0.2.1"}, 3, "BERT_HOST=192.0.2.1, BERT_PORT="),
        ({"BERT_API_KEYS_FILE": "/nowhere"}, 1, "BERT_API_KEYS_FILE=/nowhere: "),
        ({"BERT_API_KEYS": ""}, 1, "BERT_API_KEYS=***: is empty: unset it"),
        ({"BERT_MAX_QUEUE_TOKENS": "many"}, 1, "BERT_MAX_QUEUE_TOKENS=many: "),
    ],
    ids=lambda given: getattr(given, "__name__", None) or (next(iter(given)) if isinstance(given, dict) else None),
)
def test_start_that_fails_ends_with_an_exit_code_and_one_line(
    checkpoints: dict[str, str], save_sentiment: Any, environ: Any, code: int, message: str
) -> None:
    given = environ(save_sentiment("broken")) if callable(environ) else environ
    with running(checkpoints | given) as process:
        ended, output = process.end()
    assert ended == code, output
    (line,) = errors_of(output)
    assert line.startswith("bert-serve: ")
    assert message in line


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_start_on_a_taken_port_ends_with_an_exit_code_and_one_line(
    service: Process, checkpoints: dict[str, str], host: str
) -> None:
    if host == "::" and not socket.has_ipv6:
        pytest.skip("there is no IPv6")
    with running(checkpoints, "--host", host, "--port", str(service.port)) as process:
        code, output = process.end()
    assert code == 3
    (line,) = errors_of(output)
    assert line.startswith(f"bert-serve: BERT_HOST={host}, BERT_PORT={service.port}: ")
    assert "already in use" in line


def test_start_whose_inference_process_is_killed_ends_with_an_exit_code(checkpoints: dict[str, str]) -> None:
    with running(checkpoints | WITHOUT_TORCH) as process:
        os.kill(process.inference_process(), signal.SIGKILL)
        code, output = process.end()
    assert code == 3, output
    assert "bert-serve: the inference process was killed by signal 9" in output.splitlines()[-1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_start_that_fails_has_its_exit_code_although_the_log_is_full(
    service: Process, checkpoints: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "app", "--port", str(service.port)]
    root, environ = Path(__file__).parents[3], os.environ | checkpoints
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, cwd=root, env=environ, stdout=full, stderr=full, timeout=PATIENCE, check=False)
    assert ended.returncode == 3


def test_start_that_fails_logs_json_if_asked_to(checkpoints: dict[str, str], save_sentiment: Any) -> None:
    file = save_sentiment("stars") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"problem_type": "ranking"}))
    with running(checkpoints | {"BERT_LOG_FORMAT": "json", "BERT_SENTIMENT": str(file.parent)}) as process:
        code, output = process.end()
    assert code == 3
    lines = [json.loads(line) for line in output.splitlines()]
    (last,) = {line["message"] for line in lines if line["level"] == "critical"}
    assert last.startswith(f"{file}: unsupported problem_type 'ranking'")


def test_start_without_a_usable_torch_logs_json_if_asked_to(checkpoints: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libnone.so: cannot open shared object file')")
    environ = {"BERT_LOG_FORMAT": "json", "PYTHONPATH": f"{tmp_path}:client"}
    with running(checkpoints | environ) as process:
        code, output = process.end()
    assert code == 3
    lines = [json.loads(line) for line in output.splitlines()]
    assert "libnone.so" in "".join(line.get("exception", "") for line in lines)


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_host_of_two_colons_listens_on_ipv4_and_ipv6_and_sigterm_exits_with_0(checkpoints: dict[str, str]) -> None:
    environ = {"BERT_HOST": "::", "BERT_LOG_LEVEL": "debug", "FORWARDED_ALLOW_IPS": "127.0.0.1"}
    with running(checkpoints | WITHOUT_TORCH | environ) as process:
        process.until_ready()  # by 127.0.0.1
        httpx.get(f"{process.url}/info", timeout=PATIENCE)
        httpx.get(f"{process.url}/docs", headers={"X-Forwarded-For": "::ffff:192.0.2.7"}, timeout=PATIENCE)
        assert httpx.get(f"http://[::1]:{process.port}/health/live", timeout=PATIENCE).status_code == 200
        process.send(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert f"listening on http://[::]:{process.port}" in output
    assert re.search(
        r"ready in \d+ s: tiny-pretrained \(words, next sentence\), tiny-sentiment \(labels\); cpu, ", output
    )
    assert "SIGTERM: draining; requests to answer: 0, within 25 s" in output
    assert re.search(r"client=127\.0\.0\.1:\d+ method=GET path=/info ", output)
    assert "client=192.0.2.7:0 method=GET path=/docs " in output
    assert "uvicorn" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("streams", ["os.closerange(0, 3)", "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)"])
def test_service_whose_standard_streams_are_closed_or_full_exits_with_0(
    checkpoints: dict[str, str], streams: str
) -> None:
    script = f"import os, sys; {streams}; os.execv(sys.executable, [sys.executable, '-m', 'app'])"
    with running(checkpoints | WITHOUT_TORCH, script=script) as process:
        process.until_ready()
        process.send(signal.SIGTERM)
        code, _ = process.end()
    assert code == 0


def test_host_with_an_absent_address_listens_on_the_others_at_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "203.0.113.1", "127.0.0.2")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    opened = main._listen("localhost", 0)
    assert [one.getsockname()[0] for one in opened] == ["127.0.0.1", "127.0.0.2"]
    assert len({one.getsockname()[1] for one in opened}) == 1
    for one in opened:
        one.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[1:2])
    with pytest.raises(OSError, match="assign requested address"):
        main._listen("localhost", 0)
