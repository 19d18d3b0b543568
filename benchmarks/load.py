"""A load generator: `python -m benchmarks.load http://127.0.0.1:8000/sentiment --connections 64`.

Closed loop: each of N connections sends its next request when the last is answered. Open loop (`--rate`): requests are
sent at random times (Poisson) whether or not the service keeps up. Their latency counts from the intended time, so a
stalled service cannot hide its queue (coordinated omission). The generator uses HTTP/1.1 with keep-alive on bare
asyncio protocols, because a client that shares the machine must cost little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from benchmarks import texts

Answered = Callable[["Connection", float, str], None]
RESPONSE_TIMEOUT = 30.0
"""Seconds after the end within which requests that were sent in time may be answered."""


@dataclass(frozen=True, slots=True)
class Report:
    """Outcomes of the requests of one run. Latencies are seconds, ascending, of responses with status 200 only."""

    seconds: float
    latencies: list[float]
    statuses: Counter[str]
    inputs: int = 1
    """Sentences in each request."""
    deadline: float = math.inf

    @property
    def throughput(self) -> float:
        """Sentences answered per second."""
        return len(self.latencies) * self.inputs / self.seconds

    @property
    def goodput(self) -> float:
        """Sentences answered per second within the deadline."""
        good = sum(latency <= self.deadline for latency in self.latencies)
        return good * self.inputs / self.seconds

    def percentile(self, q: float) -> float:
        """Latency in seconds below which a share q of the responses came."""
        last = len(self.latencies) - 1
        return self.latencies[min(math.ceil(q * (last + 1)), last + 1) - 1] if self.latencies else math.nan

    def __str__(self) -> str:
        latency = "  ".join(f"p{q * 100:g} {self.percentile(q) * 1e3:.2f} ms" for q in (0.5, 0.9, 0.99, 0.999))
        errors = {status: n for status, n in sorted(self.statuses.items()) if status != "200"}
        good = f", {self.goodput:,.0f} within {self.deadline * 1e3:g} ms" if self.deadline < math.inf else ""
        return f"{self.throughput:,.0f} sentences/s{good}\n{latency}\nerrors {errors or 'none'}"


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, answered: Answered) -> None:
        self.answered = answered
        self.intended = math.nan
        """Intended time of the request in flight; nan if there is none."""
        self.transport: asyncio.Transport | None = None
        self._received = b""

    @property
    def is_closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def send(self, payload: bytes, intended: float) -> None:
        assert self.transport is not None
        self.intended = intended
        self.transport.write(payload)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        status = _complete(self._received)
        if status is not None:
            self._received = b""
            self._settle(status)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        if not math.isnan(self.intended):
            self._settle("closed")

    def _settle(self, status: str) -> None:
        intended, self.intended = self.intended, math.nan
        self.answered(self, intended, status)


def _complete(received: bytes) -> str | None:
    """The status of a response once all of it is here."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = received[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    if at < 0:  # chunked
        return received[9:12].decode() if received.endswith(b"0\r\n\r\n") else None
    length = int(head[at + 17 :].split(b"\r\n", 1)[0])
    return received[9:12].decode() if len(received) >= end + 4 + length else None


@dataclass
class _Run:
    """Counts answers to requests that were meant for [start, end), and keeps connections busy till `end`."""

    host: str
    port: int
    payloads: Sequence[bytes]
    start: float
    end: float
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    idle: deque[Connection] = field(default_factory=deque)
    backlog: deque[float] = field(default_factory=deque)
    """Open loop: intended times of requests that wait for a free connection."""
    pending: int = 0
    """Requests in flight, and connections being made again."""
    failures: int = 0
    replacing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._next = cycle(self.payloads).__next__

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self.answered), self.host, self.port)
        return connection

    def ask(self, connection: Connection, intended: float) -> None:
        self.pending += 1
        connection.send(self._next(), intended)

    def answered(self, connection: Connection, intended: float, status: str) -> None:
        now = time.perf_counter()
        self.pending -= 1
        if self.start <= intended < self.end:
            self.statuses[status] += 1
            if status == "200":
                self.latencies.append(now - intended)
        if connection.is_closed:
            self.pending += 1
            self.replacing.add(asyncio.get_running_loop().create_task(self._replace()))
        else:
            self.free(connection)

    def free(self, connection: Connection) -> None:
        """Send the oldest waiting request on this connection, or leave it idle."""
        if self.backlog:
            self.ask(connection, self.backlog.popleft())
        else:
            self.idle.append(connection)

    async def _replace(self) -> None:
        self.failures += 1
        await asyncio.sleep(min(0.01 * self.failures, 1))
        try:
            self.free(await self.connect())
        except OSError:
            self.statuses["refused"] += 1
        finally:
            self.pending -= 1

    async def finish(self) -> None:
        """Wait for requests in flight; those that stay unanswered are errors."""
        last = self.end + RESPONSE_TIMEOUT
        while (self.pending or self.backlog) and time.perf_counter() < last:  # noqa: ASYNC110 (a few times, after the end)
            await asyncio.sleep(0.02)
        if self.pending or self.backlog:
            self.statuses["unanswered"] += self.pending + len(self.backlog)
        for connection in self.idle:
            if connection.transport is not None:
                connection.transport.close()


class _ClosedRun(_Run):
    """A connection sends its next request as soon as it is free."""

    def free(self, connection: Connection) -> None:
        now = time.perf_counter()
        if now < self.end:
            self.ask(connection, now)
        else:
            self.idle.append(connection)


async def closed_loop(
    url: str, bodies: Sequence[bytes], connections: int, seconds: float, warm_up: float = 0.0
) -> tuple[list[float], Counter[str]]:
    """Latencies and statuses of `seconds` with N connections that are always busy."""
    run = _begin(_ClosedRun, url, bodies, seconds, warm_up)
    for connection in [await run.connect() for _ in range(connections)]:
        run.free(connection)
    await asyncio.sleep(max(run.end - time.perf_counter(), 0))
    await run.finish()
    return run.latencies, run.statuses


async def open_loop(
    url: str,
    bodies: Sequence[bytes],
    rate: float,
    seconds: float,
    warm_up: float = 0.0,
    connections: int = 512,
    seed: int = 0,
) -> tuple[list[float], Counter[str]]:
    """Latencies and statuses of requests that arrive `rate` times a second, over at most `connections`."""
    run = _begin(_Run, url, bodies, seconds, warm_up)
    for connection in [await run.connect() for _ in range(min(connections, 16))]:
        run.idle.append(connection)
    opened = len(run.idle)
    rng = random.Random(seed)
    arrival = time.perf_counter()
    while (arrival := arrival + rng.expovariate(rate)) < run.end:
        if (wait := arrival - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        elif wait < -0.01:
            await asyncio.sleep(0)  # late: let responses come in
        while run.idle and run.idle[-1].is_closed:  # by the server, which closes idle connections
            run.idle.pop()
            opened -= 1
        if not run.idle and opened < connections:
            opened += 1
            run.idle.append(await run.connect())
        if run.idle:
            run.ask(run.idle.pop(), arrival)
        else:
            run.backlog.append(arrival)
    await run.finish()
    return run.latencies, run.statuses


def _begin(kind: type[_Run], url: str, bodies: Sequence[bytes], seconds: float, warm_up: float) -> _Run:
    parts = urlsplit(url)
    host, port, start = parts.hostname or "127.0.0.1", parts.port or 80, time.perf_counter() + warm_up
    head = f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    payloads = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
    return kind(host, port, payloads, start, start + seconds)


def measure(
    url: str,
    bodies: Sequence[bytes],
    *,
    seconds: float,
    connections: int = 64,
    rate: float | None = None,
    warm_up: float = 1.0,
    inputs: int = 1,
    deadline: float = math.inf,
) -> Report:
    """A closed loop with N connections, or an open loop at a rate. Uses uvloop if it is installed."""
    if rate is None:
        work = closed_loop(url, bodies, connections, seconds, warm_up)
    else:
        work = open_loop(url, bodies, rate, seconds, warm_up)
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        latencies, statuses = runner.run(work)
    return Report(seconds, sorted(latencies), statuses, inputs, deadline)


def bodies_of(sentences: Sequence[str], inputs: int) -> list[bytes]:
    """Request bodies in this service's shape with N sentences each."""
    if inputs == 1:
        return [json.dumps({"inputs": text}).encode() for text in sentences]
    starts = range(0, len(sentences) - inputs + 1, inputs)
    return [json.dumps({"inputs": list(sentences[i : i + inputs])}).encode() for i in starts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="of /sentiment, or of /fill-mask with --suffix ' [MASK]'")
    parser.add_argument("--connections", type=int, default=64, help="closed loop")
    parser.add_argument("--rate", type=float, help="requests per second: open loop")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=2, help="seconds that do not count")
    parser.add_argument("--inputs", type=int, default=1, help="sentences in each request")
    parser.add_argument("--deadline-ms", type=float, default=math.inf, help="goodput counts answers within it")
    parser.add_argument("--suffix", default="", help="put after each sentence")
    parser.add_argument("--texts", type=Path, help="JSON Lines file of reviews; else sentences are generated")
    parser.add_argument("--ceiling", type=float, help="sentences/s without HTTP, from benchmarks.offline")
    options = parser.parse_args()
    sentences = [text + options.suffix for text in texts.load(options.texts, 4096)]
    report = measure(
        options.url,
        bodies_of(sentences, options.inputs),
        seconds=options.seconds,
        connections=options.connections,
        rate=options.rate,
        warm_up=options.warm_up,
        inputs=options.inputs,
        deadline=options.deadline_ms / 1e3,
    )
    print(report)
    if options.ceiling:
        print(f"{report.throughput / options.ceiling:.0%} of the offline ceiling")


if __name__ == "__main__":
    main()
