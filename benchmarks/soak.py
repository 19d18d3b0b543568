"""A long run with valid, invalid and abandoned requests: `python -m benchmarks.soak --minutes 30`.

A closed loop measures the capacity; then requests are sent at random times at 70% of it (`--load`). One in a hundred
(`--share`) is garbage, and as many callers hang up before the response. The exit status is 1 if a status is not 200,
400 or 422, if a request is left in the queue, or if memory grows by more than 5%.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import checkpoints, load, texts
from benchmarks.overload import resident
from benchmarks.servers import Server, service

_GARBAGE = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"inputs": 5}',
    b'{"inputs": ""}',
    b"[" * 10_000,
    b'{"inputs": "x", "y": 1}',
]
_EXPECTED = {"200", "400", "422"}
_GROWTH = 0.05


def mixed(bodies: list[bytes], share: float, rng: random.Random) -> list[bytes]:
    """The bodies, some of which are replaced by garbage."""
    return [rng.choice(_GARBAGE) if rng.random() < share else body for body in bodies]


async def hang_up(url: str, bodies: list[bytes], rate: float, until: float, rng: random.Random) -> int:
    """Send `rate` requests a second and close each connection within 50 ms. Returns the number of requests."""
    parts = urlsplit(url)
    sent = 0
    while time.perf_counter() < until:
        await asyncio.sleep(rng.expovariate(rate))
        body = rng.choice(bodies)
        head = f"POST {parts.path} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write((head + body)[: rng.choice([len(head), len(head) + len(body) // 2, None])])
        await asyncio.sleep(rng.uniform(0, 0.05))
        writer.transport.abort()
        sent += 1
    return sent


async def watch(server: Server, until: float) -> list[float]:
    """Memory in MB, sampled once a second."""
    seen = [resident(server)]
    while time.perf_counter() < until:
        await asyncio.sleep(1)
        seen.append(resident(server))
    return seen


async def soak(
    server: Server, bodies: list[bytes], rate: float, seconds: float, share: float
) -> tuple[Counter[str], int, list[float]]:
    """Statuses of the requests that were waited for, number of abandoned requests, and memory."""
    rng = random.Random(0)
    until = time.perf_counter() + seconds
    (_, statuses), left, memory = await asyncio.gather(
        load.open_loop(server.url, mixed(bodies, share, rng), rate, seconds),
        hang_up(server.url, bodies, rate * share, until, rng),
        watch(server, until),
    )
    return statuses, left, memory


def metric(server: Server, name: str) -> float:
    """The value of a metric in the server's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--load", type=float, default=0.7, help="share of the capacity")
    parser.add_argument("--share", type=float, default=0.01, help="of garbage, and of callers that hang up")
    parser.add_argument("--inputs", type=int, default=8, help="sentences in each request")
    options = parser.parse_args()
    bodies = load.bodies_of(texts.load(None, 4096), options.inputs)
    server = service(*checkpoints.directories(options.checkpoints), options.dtype)
    server.start()
    try:
        capacity = load.measure(server.url, bodies, seconds=8, connections=16, warm_up=4, inputs=options.inputs)
        rate = options.load * capacity.throughput / options.inputs
        work = soak(server, bodies, rate, options.minutes * 60, options.share)
        statuses, left, memory = asyncio.run(work)
        waiting, cancelled = (
            metric(server, "bert_queue_requests"),
            metric(server, "bert_requests_cancelled_total"),
        )
    finally:
        server.stop()
    ours = {status: n for status, n in sorted(statuses.items()) if status not in _EXPECTED}
    start, end = memory[0], memory[-1]
    growth = end / start - 1
    print(f"capacity {capacity.throughput:,.0f} sentences/s; {options.load:.0%} of it for {options.minutes:g} min")
    print(f"{statuses.total():,} requests, and {left:,} callers that hung up ({cancelled:,.0f} before compute)")
    print(f"statuses {dict(sorted(statuses.items()))}, {waiting:g} left in the queue")
    print(f"errors of ours: {ours or 'none'}")
    print(f"memory: {start:.0f} MB at start, {end:.0f} MB at end ({growth:+.1%}), {max(memory):.0f} MB at most")
    tenths = [memory[i * (len(memory) - 1) // 10] for i in range(11)]
    print(f"from tenth to tenth of the time: {', '.join(f'{at:.0f}' for at in tenths)} MB")
    sys.exit(bool(ours or waiting or growth > _GROWTH))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
