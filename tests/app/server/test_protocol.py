"""Raw sockets against a real server: connections that send slowly or without end are closed, others are not."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import re
import signal
import socket
import struct
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bert_client
from app.server.protocol import BoundedProtocol
from tests.app.process import PATIENCE, WITHOUT_TORCH, Process, running
from tests.app.server.conftest import Served, StartServer
from tests.app.waiting import until

SMALL_BUFFER = 64 * 1024
"""Bytes: most of a large answer that is not read stays with the server."""
HEAD = b"POST /sentiment HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"inputs":"good"}'
ASKED = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
LAST = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
"""A request after whose answer the server closes the connection."""


@pytest.fixture
async def hasty(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A server whose timeouts all end after 0.2 s."""
    monkeypatch.setattr("app.server.protocol.MIN_TIMEOUT_SECONDS", 0.2)
    async with start_server(request_timeout_ms=200) as served:
        yield served


@pytest.fixture
def hasty_connections(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds in which a head must come and some of an answer must be read, but not the time of a request."""

    def limit(seconds: float) -> None:
        init = BoundedProtocol.__init__

        def limited(protocol: BoundedProtocol, *arguments: Any, **options: Any) -> None:
            init(protocol, *arguments, **options)
            protocol._timeout = seconds

        monkeypatch.setattr(BoundedProtocol, "__init__", limited)

    return limit


async def trickle(port: int, begin: bytes, drop: bytes) -> bytes:
    """What is received until the server closes, while `drop` is sent over and over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()

    async def read() -> None:
        with suppress(ConnectionResetError):  # it closed while more was on its way
            while part := await reader.read(1 << 16):
                received.extend(part)

    reading = asyncio.create_task(read())
    writer.write(begin)
    async with asyncio.timeout(PATIENCE):
        while not reading.done():
            writer.write(drop)
            await asyncio.sleep(0.02)
    writer.transport.abort()
    return bytes(received)


@pytest.mark.parametrize(
    ("begin", "drop", "answer"),
    [
        (HEAD, b"", b""),
        (HEAD + b"X-A: ", b"a", b""),
        (HEAD, b"X-A: a\r\n", b""),
        (b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD + b"X-A: ", b"a", b"HTTP/1.1 200"),
        (HEAD + b"Content-Length: 100000\r\n\r\n", b" ", b"HTTP/1.1 504"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b" ", b"HTTP/1.1 404"),
    ],
    ids=["half a head", "letter by letter", "line by line", "second head", "body", "body of a refused request"],
)
async def test_head_or_body_that_does_not_end_is_cut_off(
    hasty: Served, begin: bytes, drop: bytes, answer: bytes
) -> None:
    received = await trickle(hasty.port, begin, drop)
    assert received.startswith(answer)
    assert bool(received) == bool(answer)


def exchange(port: int, *parts: bytes) -> bytes:
    """All that is answered to bytes that come in parts, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
            time.sleep(0.05)
        return rest_of(connection)


def statuses(received: bytes) -> list[bytes]:
    """The statuses of all responses."""
    return re.findall(rb"HTTP/1.1 (\d+)", received)


@pytest.mark.parametrize("offer", [b"Upgrade: h2c", b"upgrade:h2c", b"UPGRADE: websocket"])
@pytest.mark.parametrize("parts", [1, 2])
def test_offer_of_another_protocol_is_passed_over(service: Process, offer: bytes, parts: int) -> None:
    names = b"Connection: Upgrade, HTTP2-Settings\r\n" + offer + b"\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    head = HEAD + names + b"Content-Length: %d\r\n\r\n" % len(BODY)
    sent = [head + BODY, LAST] if parts == 1 else [head, BODY, LAST]
    received = exchange(service.port, *sent)
    assert statuses(received) == [b"200", b"200"], received


OFFER = b"Upgrade: h2c\r\n"


@pytest.mark.parametrize("cut", [0, 5, -5], ids=["at once", "after the first body began", "before the last ends"])
def test_offers_in_a_pipeline_are_passed_over(service: Process, cut: int) -> None:
    offering = HEAD + b"Connection: Upgrade\r\n" + OFFER + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    sent = ASKED + offering + offering + LAST
    cut += len(ASKED) - len(BODY) if cut > 0 else 0
    received = exchange(service.port, sent[:cut], sent[cut:]) if cut else exchange(service.port, sent)
    assert statuses(received) == [b"200"] * 4, received


def test_head_after_another_request_whose_last_line_comes_alone_is_read(service: Process) -> None:
    live = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    received = exchange(service.port, ASKED + live, b"\r\n")
    assert statuses(received) == [b"200", b"200"], received


@pytest.mark.parametrize("at", range(-2, len(OFFER) + 1))
def test_offer_is_passed_over_wherever_it_is_cut_in_two(service: Process, at: int) -> None:
    head = HEAD + b"Connection: Upgrade, close\r\n"
    request = head + OFFER + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    received = exchange(service.port, request[: len(head) + at], request[len(head) + at :])
    assert received.startswith(b"HTTP/1.1 200"), received


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("cut", ["head", "body"])
def test_chunk_that_begins_like_an_offer_is_read_as_it_is(service: Process, parts: int, cut: str) -> None:
    """What follows a chunk's size follows an end of line."""
    chunks = [b'{"inputs":"good ', b'Upgrade: film"}']
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    encoding = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = HEAD + encoding + chunked
    at = len(HEAD) + (len(encoding) - 9 if cut == "head" else len(encoding) + 3)
    pieces = {1: [whole], 2: [whole[:at], whole[at:]], 3: [HEAD, encoding + chunked[:20], chunked[20:]]}[parts]
    plain = b"".join(chunks)
    length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(plain)
    answers = [exchange(service.port, *pieces), exchange(service.port, HEAD + length + plain)]
    scores = [re.findall(rb'"score":([\d.]+)|"tokens":(\d+)', answer) for answer in answers]
    assert scores[0]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("parts", [1, 2])
def test_binary_tensor_with_a_line_like_an_offer_is_read_as_it_is(service: Process, parts: int) -> None:
    def answer(text: bytes) -> bytes:
        raw = len(text).to_bytes(4, "little") + text
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}}
        asked = json.dumps({"inputs": [tensor]}).encode()
        head = b"POST /v2/models/sentiment/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += b"Inference-Header-Content-Length: %d\r\n" % len(asked)
        head += b"Content-Length: %d\r\n\r\n" % len(asked + raw)
        sent = [head + asked + raw] if parts == 1 else [head, asked + raw]
        status, _, rest = exchange(service.port, *sent).partition(b"\r\n")
        assert status == b"HTTP/1.1 200 OK"
        return rest.partition(b"\r\n\r\n")[2]

    assert answer(b"a film\r\nupgrade: good") == answer(b"a film\n\nupgrade: good")


@pytest.mark.parametrize("at", range(-3, 1))
def test_body_is_read_whole_wherever_the_end_of_its_head_is_cut_in_two(service: Process, at: int) -> None:
    body = BODY + b"\r\n"
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    cut = len(head) + at
    received = exchange(service.port, head[:cut], head[cut:] + body)
    assert received.startswith(b"HTTP/1.1 200"), received


async def test_body_in_broken_chunks_of_a_refused_request_gets_no_second_answer(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its 415 is sent before its body comes."""
    head = HEAD.replace(b"application/json", b"text/plain") + b"Transfer-Encoding: chunked\r\n\r\n"
    async with start_server() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 415")
        writer.write(b"ZZ\r\n")
        async with asyncio.timeout(PATIENCE):
            rest = await reader.read()  # until the server closes the connection
        writer.close()
    assert b"HTTP/1.1" not in rest
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_body_in_broken_chunks_is_counted_as_a_caller_who_left(start_server: StartServer) -> None:
    async with start_server() as served:
        answered = partial(served.metrics.get_sample_value, "bert_requests_total")
        left = {"task": "sentiment", "status": "499"}
        assert await ask_in_chunks(served.port, b"nonsense\r\n") == b""
        await until(lambda: answered(left) == 1)
        assert served.metrics.get_sample_value("bert_requests_cancelled_total") == 1


async def test_body_in_broken_chunks_does_not_get_100_continue(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The app asks for the body of this request after the connection was closed for writing."""
    async with start_server() as served:
        assert await ask_in_chunks(served.port, b"zz\r\n", b"Expect: 100-continue\r\n") == b""
        assert (await served.client.post("/sentiment", json={"inputs": "good"})).status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def ask_in_chunks(port: int, body: bytes, headers: bytes = b"") -> bytes:
    """All that is received in answer to a request and its chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + headers + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    async with asyncio.timeout(PATIENCE):
        received = await reader.read()
    writer.close()
    return received


@pytest.mark.parametrize("requests", [1, 3])
def test_requests_before_bytes_that_are_no_request_are_answered(service: Process, requests: int) -> None:
    whole = HEAD + b"X-Request-ID: mine\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    received = exchange(service.port, whole * requests + b"junk\r\n\r\n")
    assert statuses(received) == [b"200"] * requests, received
    assert received.count(b"x-request-id: mine") == requests
    assert re.findall(rb"(?i)connection: close", received) == [b"connection: close"], received


def test_requests_before_a_body_in_broken_chunks_are_answered(service: Process) -> None:
    received = exchange(service.port, ASKED * 2 + HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
    assert statuses(received) == [b"200"] * 2, received


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"FOO / HTTP/1.1\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_get_a_bare_400(service: Process, nonsense: bytes) -> None:
    assert bare_status(exchange(service.port, nonsense)) == 400


def test_bytes_that_are_no_request_get_a_bare_400_after_an_answered_request(service: Process) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(1000)
        connection.sendall(b"hello\r\n\r\n")
        assert bare_status(rest_of(connection)) == 400


@pytest.mark.parametrize(
    "target", ["GET http://host?x", "GET http://host:99999/health/live", "OPTIONS http://host", "CONNECT host:443"]
)
@pytest.mark.parametrize("head", [b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"])
async def test_target_that_cannot_be_read_gets_a_bare_400_after_the_requests_before_it(
    start_server: StartServer, backend: Any, target: str, head: bytes
) -> None:
    bad = target.encode() + b" HTTP/1.1\r\nHost: x\r\n" + head
    live = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    async with start_server() as served:
        assert bare_status(await asyncio.to_thread(exchange, served.port, bad)) == 400
        for before in (live, live + ASKED):
            for sent in ([before + bad + live], [before, bad]):
                received = await asyncio.to_thread(exchange, served.port, *sent)
                assert statuses(received) == [b"200"] * before.count(b"Host") + [b"400"], received
        backend.gate.clear()
        answer = asyncio.create_task(asyncio.to_thread(exchange, served.port, live + ASKED * 2 + bad + live))
        await backend.has_entered()
        backend.gate.set()
        assert statuses(await answer) == [b"200"] * 3 + [b"400"]


@pytest.mark.parametrize(
    ("target", "status"),
    [(b"GET http://host/health/live", b"200"), (b"GET http://host:80/health/live?x", b"200"), (b"OPTIONS *", b"404")],
)
def test_target_in_another_form_is_answered(service: Process, target: bytes, status: bytes) -> None:
    request = target + b" HTTP/1.1\r\nHost: x\r\n"
    received = exchange(service.port, (request + b"\r\n") * 2 + request + b"Connection: close\r\n\r\n")
    assert statuses(received) == [status] * 3, received


def test_request_without_a_host_is_refused(service: Process) -> None:
    answer = problem(exchange(service.port, b"GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n"))
    assert (answer["status"], answer["detail"]) == (400, "HTTP/1.1 requires the header Host")
    old = exchange(service.port, b"GET /health/live HTTP/1.0\r\n\r\n")
    assert old.startswith(b"HTTP/1.1 200")


def test_two_hosts_are_refused(service: Process) -> None:
    asked = b"GET /health/live HTTP/1.1\r\nHost: x\r\nHost: y\r\nConnection: close\r\n\r\n"
    answer = problem(exchange(service.port, asked))
    assert (answer["status"], answer["detail"]) == (400, "send one header Host, not several")


def test_bytes_that_are_no_request_are_not_logged(checkpoints: dict[str, str]) -> None:
    with running(checkpoints | WITHOUT_TORCH | {"BERT_LOG_LEVEL": "debug"}) as process:
        process.until_ready()
        assert bare_status(exchange(process.port, b"hello\r\n\r\n")) == 400
        head = HEAD + b"X-Request-ID: mine\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert exchange(process.port, head, b"zz\r\n") == b""
        process.send(signal.SIGTERM)
        _, output = process.end()
    (line,) = (line for line in output.splitlines() if "path=/sentiment" in line)
    assert " DEBUG app.http.context: client=127.0.0.1:" in line
    assert " status=499 " in line
    assert line.endswith("problem=caller_gone [mine]")
    assert "Invalid HTTP request received" not in output  # uvicorn's warning


@pytest.mark.parametrize("end", [b"", b"\r\nContent-Length: 0\r\n\r\n"], ids=["unfinished", "whole"])
def test_head_that_is_too_large_gets_a_bare_431(service: Process, end: bytes) -> None:
    assert bare_status(exchange(service.port, HEAD + b"X-A: " + b"a" * 65_500 + end)) == 431


def test_head_is_not_too_large_for_what_comes_before_it(service: Process) -> None:
    first = HEAD + b"Content-Length: 70000\r\n\r\n" + b" " * 70_000
    received = exchange(service.port, first + LAST[:10], LAST[10:])
    assert statuses(received) == [b"400", b"200"], received


@pytest.mark.parametrize("zeros", [1, 5000])
def test_length_may_have_leading_zeros(service: Process, zeros: int) -> None:
    asked = HEAD + b"Connection: close\r\nContent-Length: %s%d\r\n\r\n" % (b"0" * zeros, len(BODY)) + BODY
    assert exchange(service.port, asked).startswith(b"HTTP/1.1 200")


def test_many_requests_at_once_are_answered_in_their_order(service: Process) -> None:
    live, ask = b"GET /health/live HTTP/1.1\r\nHost: x\r\n", b"GET /nowhere HTTP/1.1\r\nHost: x\r\n"
    received = exchange(service.port, (live + b"\r\n" + ask + b"\r\n") * 40, live + b"Connection: close\r\n\r\n")
    assert statuses(received) == [b"200", b"404"] * 40 + [b"200"]


@pytest.mark.parametrize("megabytes", [1, 5], ids=["within the limit", "beyond it"])
@pytest.mark.parametrize(("path", "status"), [("/sentiment", 415), ("/nowhere", 404)])
def test_refusal_reaches_a_caller_who_closes_and_is_still_sending(
    service: Process, path: str, status: int, megabytes: int
) -> None:
    """As `urllib.request` does: it sends the whole body before it reads, and `Connection: close` with each request."""
    for _ in range(5):
        with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)) as connection:
            headers = {"Connection": "close", "Content-Type": "text/plain"}
            connection.request("POST", path, b" " * (megabytes * 1_000_000), headers)
            answer = connection.getresponse()
            assert answer.status == json.loads(answer.read())["status"] == status


async def test_answer_before_bytes_that_are_no_request_may_be_read_slowly(
    start_server: StartServer, hasty_connections: Callable[[float], None]
) -> None:
    hasty_connections(2.0)
    body = b'{"inputs": "%s"}' % (b"!" * 20_000)
    asked = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    async with start_server(send_buffer_bytes=SMALL_BUFFER) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=2**16)
        writer.write(asked % len(body) + body + b"\x00\x00\r\n\r\n")
        received = b""
        async with asyncio.timeout(PATIENCE):
            while part := await reader.read(100_000):
                received += part
                await asyncio.sleep(0.05)
        writer.close()
    head, _, answer = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(json.loads(answer)[0]) == 20_002


def test_requests_without_end_are_not_heaped_up(service: Process) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.settimeout(PATIENCE)
        with pytest.raises(ConnectionError):  # it was closed
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000_000)


async def test_caller_who_hangs_up_on_many_requests_is_no_error(
    start_server: StartServer, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_server() as served:
        backend.gate.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(ASKED * 100)
        await served.queued(1)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await served.queued(0)
        backend.gate.set()
        assert (await served.client.post("/sentiment", json={"inputs": "good"})).status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_trailers_are_not_kept(service: Process) -> None:
    def resident() -> int:
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]

    before = resident()
    head = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as connection:
        connection.sendall(head + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY) + b"a:\r\n" * 500_000)
        assert resident() - before < 30_000  # kB; all trailers would take three times as much
        connection.sendall(b"\r\n")
        assert rest_of(connection).startswith(b"HTTP/1.1 200")


def test_head_is_not_too_large_for_what_follows_it(service: Process) -> None:
    body = b'{"inputs": "good"%s}' % (b" " * 100_000)
    asked = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert exchange(service.port, asked).startswith(b"HTTP/1.1 200")


async def test_short_deadline_leaves_time_to_connect(start_server: StartServer) -> None:
    async with start_server(request_timeout_ms=1) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await asyncio.sleep(0.2)
        writer.write(b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


def bare_status(received: bytes) -> int:
    """The status of a response that has no body and closes the connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert {"content-length: 0", "connection: close"} <= set(lines)
    assert body == b""
    return int(lines[0].removeprefix("http/1.1 ").partition(" ")[0])


def problem(received: bytes) -> dict[str, object]:
    """The body of a refusal, whose head says the same."""
    head, _, body = received.partition(b"\r\n\r\n")
    answer: dict[str, object] = json.loads(body)
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith(f"http/1.1 {answer['status']} ")
    assert {"content-type: application/problem+json", "connection: close"} <= set(lines)
    assert f"x-request-id: {answer['request_id']}" in lines
    return answer


async def test_head_of_many_headers_is_refused(service: Process) -> None:
    received = await trickle(service.port, HEAD, b"a:\r\n" * 1000)
    assert bare_status(received) == 431
    head = HEAD + b"a:\r\n" * 190 + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    assert exchange(service.port, head + BODY).startswith(b"HTTP/1.1 200")


async def test_endless_head_is_refused(service: Process) -> None:
    received = await trickle(service.port, HEAD + b"X-A: ", b"a" * 10_000)
    assert received.startswith(b"HTTP/1.1 431") or not received


async def test_many_slow_callers_do_not_keep_others_out(hasty: Served) -> None:
    slow = [asyncio.create_task(trickle(hasty.port, HEAD, b"X-A: a\r\n")) for _ in range(100)]
    assert (await hasty.client.get("/health/ready")).status_code == 200
    assert set(await asyncio.gather(*slow)) == {b""}


async def test_idle_connection_is_closed_after_the_keep_alive_seconds(start_server: StartServer) -> None:
    async with start_server(keep_alive_seconds=60) as served, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        timers = []
        for _ in range(2):
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            (connection,) = (one for one in served.server.server_state.connections if one.cycle)
            timers.append(connection.timeout_keep_alive_task)
        first, second = timers
        assert first.cancelled()
        assert first.when() < second.when()
        assert connection.timeout_keep_alive == 60
        second._run()
        assert await reader.read() == b""  # it was closed
        writer.close()


@pytest.mark.parametrize("requests", [1, 3, 100])
async def test_old_connection_ends_after_the_requests_that_were_received(
    start_server: StartServer, requests: int
) -> None:
    half = len(ASKED) * (requests - 1) + 20  # in the last head
    async with start_server(connection_seconds=1e-9) as served:
        for sent in ([ASKED * requests], [(ASKED * requests)[:half], (ASKED * requests)[half:]]):
            received = await asyncio.to_thread(exchange, served.port, *sent)
            assert statuses(received) == [b"200"] * requests
            assert re.findall(rb"(?i)connection: close", received) == [b"connection: close"]


async def test_old_connections_end_without_an_error_of_the_client(start_server: StartServer) -> None:
    async with start_server(connection_seconds=1e-9) as served:
        client = bert_client.AsyncBertClient(
            f"http://127.0.0.1:{served.port}", retry=bert_client.RetryPolicy(attempts=1)
        )
        for _ in range(20):
            assert len(await client.sentiment(["good"] * 5)) == 5
        await client.aclose()
    async with start_server(connection_seconds=0) as served:
        answers = [await served.client.get("/health/live") for _ in range(5)]
    assert all("connection" not in answer.headers for answer in answers)


async def test_connection_that_rests_before_and_between_requests_is_kept(hasty: Served) -> None:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
        for _ in range(2):
            await asyncio.sleep(0.5)  # longer than the time for a head
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_connection_without_any_request_is_closed_after_the_keep_alive_seconds(start_server: StartServer) -> None:
    async with start_server(keep_alive_seconds=1) as served, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await reader.read() == b""  # it was closed
        writer.close()


@pytest.mark.parametrize("late", [b"{}", b"\r\n"], ids=["a body after its answer", "an empty line"])
async def test_bytes_that_begin_no_request_do_not_keep_a_connection(start_server: StartServer, late: bytes) -> None:
    async with start_server(keep_alive_seconds=1) as served, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        length = len(late.strip())
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 404")
        writer.write(late)
        assert await reader.read() == b""  # it was closed
        writer.close()


MUCH = 150
"""Texts whose answer has 1.5 MB."""


def ask_for_much(port: int, *headers: bytes, inputs: int = MUCH) -> tuple[socket.socket, bytes, int]:
    """A connection on which a large answer comes, the first of it, and how long its body is to be."""
    connection = send_for_much(port, *headers, inputs=inputs)
    head = connection.recv(1000)
    if not head.startswith(b"HTTP/1.1 200"):
        connection.close()
        raise AssertionError(head)
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    return connection, head, int(length[1])


def send_for_much(port: int, *headers: bytes, inputs: int = MUCH) -> socket.socket:
    """A connection on which a large answer comes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.settimeout(PATIENCE)
    body = json.dumps({"inputs": ["[MASK]" + 40 * " a"] * inputs, "parameters": {"top_k": 70}}).encode()
    lines = (b"POST /fill-mask HTTP/1.1", b"Host: x", b"Content-Type: application/json", *headers)
    lines += (b"Content-Length: %d" % len(body),)
    connection.sendall(b"\r\n".join([*lines, b"", body]))
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """All that still comes."""
    received = b""
    with suppress(ConnectionResetError), connection:
        while part := connection.recv(1 << 20):
            received += part
    return received


async def test_answer_that_is_not_read_is_not_kept(
    start_server: StartServer, hasty_connections: Callable[[float], None]
) -> None:
    hasty_connections(1.0)
    async with start_server(send_buffer_bytes=SMALL_BUFFER) as served:
        connection, head, length = await asyncio.to_thread(ask_for_much, served.port)
        await until(lambda: states(connection)[0][0] != "01")
        assert len(head + await asyncio.to_thread(rest_of, connection)) < length


async def test_answers_that_are_not_read_are_bounded(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(send_buffer_bytes=SMALL_BUFFER) as served:
        first = await asyncio.to_thread(ask_for_much, served.port)
        length = first[-1]
        monkeypatch.setattr("app.server.protocol.MAX_UNREAD_BYTES", 2 * length)
        second = await asyncio.to_thread(ask_for_much, served.port)
        third = await asyncio.to_thread(send_for_much, served.port)
        assert len(await asyncio.to_thread(rest_of, third)) < length  # until the server closes the connection
        for connection, head, _ in (first, second):
            assert len(await body_after(head, connection)) == length
        connection, head, _ = await asyncio.to_thread(ask_for_much, served.port)
        assert len(await body_after(head, connection)) == length


async def body_after(head: bytes, connection: socket.socket) -> bytes:
    """The whole body of an answer whose first bytes have been read."""
    body = bytearray(head.partition(b"\r\n\r\n")[2])
    length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
    with connection:
        while len(body) < length:
            part = await asyncio.to_thread(connection.recv, 1 << 20)
            assert part, "the connection was closed"
            body += part
    return bytes(body)


async def test_end_of_an_unread_answer_is_not_kept_if_the_connection_closes(
    start_server: StartServer, hasty_connections: Callable[[float], None]
) -> None:
    """The kernel takes nearly all of it, and the rest is too little for the transport to pause writing."""
    hasty_connections(2.0)
    async with start_server(send_buffer_bytes=SMALL_BUFFER) as served:
        connection, head, length = await asyncio.to_thread(ask_for_much, served.port)
        with connection:
            await asyncio.sleep(0.5)
            taken = len(head) + sum(queued for _, queued in states(connection))
        inputs = -(-(taken + 20_000) * MUCH // length)
        connection, head, length = await asyncio.to_thread(
            ask_for_much, served.port, b"Connection: close", inputs=inputs
        )
        with connection:
            assert taken < length < taken + 60_000
            await until(lambda: states(connection)[0][0] != "01")


def states(connection: socket.socket) -> list[tuple[str, int]]:
    """Of the service's end and of this one, what Linux says: 01 until it is closed, and the bytes it holds."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here, there = (f":{address[1]:04X}" for address in (connection.getsockname(), connection.getpeername()))
    ends = {row[1][-5:]: row for row in rows if {row[1][-5:], row[2][-5:]} == {here, there}}
    queues = ((ends[end][3], ends[end][4].split(":")) for end in (there, here) if end in ends)
    return [(state, int(sent, 16) + int(received, 16)) for state, (sent, received) in queues] or [("", 0)]


async def test_answer_that_is_being_read_at_sigterm_arrives_whole(start_server: StartServer) -> None:
    async with start_server(send_buffer_bytes=SMALL_BUFFER) as served:
        connection, head, length = await asyncio.to_thread(ask_for_much, served.port)
        served.send(signal.SIGTERM)
        await asyncio.sleep(2)  # longer than uvicorn waits for connections to close
        received = head + await asyncio.to_thread(rest_of, connection)
        await served.end()
    assert len(received.partition(b"\r\n\r\n")[2]) == length


async def ask_on_new_connection(port: int, head: bytes, body: bytes = b"") -> bytes:
    """All that is received until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(PATIENCE):
            received = await reader.read()
        writer.close()
        return received
    return b""


async def test_tasks_on_connections_above_the_limit_are_refused(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.server.protocol.SPARE_CONNECTIONS", 2)
    async with start_server(max_connections=3) as served:
        await served.client.aclose()
        await until(lambda: not served.server.server_state.connections)
        kept = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]
        await until(lambda: len(served.server.server_state.connections) == 3)
        refused = await ask_on_new_connection(served.port, HEAD, BODY)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"too_many_connections"' in refused
        assert b"\r\nretry-after: 1\r\n" in refused.lower()
        for path in (b"/health/live", b"/health/ready", b"/metrics", b"/v2/health/live"):
            answer = await ask_on_new_connection(served.port, b"GET %s HTTP/1.1\r\nHost: x\r\n" % path)
            assert answer.startswith(b"HTTP/1.1 200 "), path
        reader, writer = kept[0]  # those that were there go on
        writer.write(ASKED)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        spare = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        await until(lambda: len(served.server.server_state.connections) == 5)
        for _ in range(2):
            assert await ask_on_new_connection(served.port, b"GET /health/live HTTP/1.1\r\nHost: x\r\n") == b""
        assert caplog.messages.count("6 connections are open; further ones are closed, those of probes too") == 1
        for _, writer in [*kept, *spare]:
            writer.close()
        await until(lambda: not served.server.server_state.connections)
        head = HEAD + b"Connection: close\r\n"
        assert (await ask_on_new_connection(served.port, head, BODY)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD + b"Content-Length: 17\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 18\r\n\r\n" + BODY,
        b"nonsense\r\n\r\n",
    ],
    ids=["idle", "a request", "half a request", "nonsense"],
)
@pytest.mark.parametrize("is_answered", [True, False])
async def test_closed_connection_is_in_no_reference_cycle(
    start_server: StartServer, backend: Any, sent: bytes, is_answered: bool
) -> None:
    """Otherwise it is never freed if it was open at a reload, which freezes all objects."""
    async with start_server() as served:
        connections = served.server.server_state.connections
        await served.client.aclose()
        await until(lambda: not connections)
        if not is_answered:
            backend.gate.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(sent)
        await until(lambda: connections)
        if is_answered and sent.endswith(BODY):
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.readline(), 0.1)
        elif sent.endswith(BODY):
            await asyncio.sleep(0.05)
        (connection,) = map(weakref.ref, connections)
        gc.collect()
        gc.disable()
        try:
            writer.transport.abort()
            await until(lambda: connection() is None)
        finally:
            gc.enable()
        backend.gate.set()
