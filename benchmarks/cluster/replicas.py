"""Queueing of up to 100 replicas, simulated with measured service times: `python -m benchmarks.cluster.replicas`.

A replica is the service on two cores. HTTP is one stage that takes a fixed time per request. Then two processes take
batches from one queue, the next one the moment a process is free. A batch of t tokens takes
LAUNCH_SECONDS + t / TOKENS_PER_SECOND. The constants are measured (experiments/LOG.md, a network of 4 layers of 256 on
two cores of a Zen 5). The output begins with the measurement at half load. The model has no load generator on the same
cores, so its times are lower: read the ratios between its lines.

Requests arrive at random (Poisson). They are spread over the replicas at random (a Kubernetes Service), round robin
(nginx), or to the shorter of two random queues (Ray Serve).
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

HTTP_SECONDS = 0.44 / 2124
"""Time of a request in the HTTP process: 0.44 of a core at 2,124 requests/s."""
LAUNCH_SECONDS = 0.0009
"""Fixed time of a batch: a lone sentence of 28 tokens takes 1.4 ms, of which 28 tokens at full speed are 0.5 ms."""
TOKENS_PER_SECOND = 2124 * 28 / 2 / (1 - 0.0009 * 2124 / 2 / 13)
"""Speed of one process: 2,124 sentences/s of 28 tokens in two processes, in batches of 13, less the launches."""
PROCESSES = 2
BATCH_TOKENS = 2048
SENTENCE_TOKENS = 28
"""Mean tokens of a sentence. Lengths are drawn from a log-normal distribution with a standard deviation of 0.7."""
CAPACITY = 2124
"""Sentences per second of one replica, as measured over HTTP."""


@dataclass(slots=True)
class Replica:
    """The queue of one replica, and its processes."""

    waiting: deque[tuple[float, int, float]] = field(default_factory=deque)
    """(arrival, tokens, time at which HTTP has read it) of each request."""
    free: int = PROCESSES
    unanswered: int = 0
    http_free_at: float = 0.0


Route = Callable[[list[Replica], int, np.random.Generator], int]


def at_random(replicas: list[Replica], number: int, rng: np.random.Generator) -> int:  # noqa: ARG001
    return int(rng.integers(len(replicas)))


def in_turn(replicas: list[Replica], number: int, rng: np.random.Generator) -> int:  # noqa: ARG001
    return number % len(replicas)


def shorter_of_two(replicas: list[Replica], number: int, rng: np.random.Generator) -> int:  # noqa: ARG001
    one, other = rng.integers(len(replicas), size=2).tolist()
    return int(one if replicas[one].unanswered <= replicas[other].unanswered else other)


def simulate(
    count: int, load: float, route: Route, seconds: float, seed: int = 0, long_share: float = 0.0
) -> tuple[list[float], float]:
    """Latencies in seconds of all requests, and the mean seconds of waiting work of a replica.

    Args:
        load: Requests per second, as a share of `CAPACITY`, if all were sentences.
        long_share: Share of requests with a review of 300 tokens; the rate falls so that the number of tokens stays the
            same.
    """
    rng = np.random.default_rng(seed)
    mean = long_share * 300 + (1 - long_share) * SENTENCE_TOKENS
    rate = count * CAPACITY * load * SENTENCE_TOKENS / mean
    total = int(rate * seconds)
    arrivals = np.cumsum(rng.exponential(1 / rate, total)).tolist()
    lengths = rng.lognormal(math.log(SENTENCE_TOKENS) - 0.7**2 / 2, 0.7, total)
    lengths = np.where(rng.random(total) < long_share, 300, np.clip(lengths, 4, 512)).astype(int).tolist()
    replicas = [Replica() for _ in range(count)]
    latencies: list[float] = []
    waited = 0.0
    events: list[tuple[float, int, int, list[float]]] = []  # (time, tie, replica, arrivals of an ended batch)

    def start(index: int, now: float) -> None:
        replica = replicas[index]
        while replica.free and replica.waiting and replica.waiting[0][2] <= now:
            share = sum(tokens for _, tokens, read in replica.waiting if read <= now) / replica.free
            limit, taken, ended = min(BATCH_TOKENS, max(share, 256)), 0, []
            while replica.waiting and replica.waiting[0][2] <= now and (not taken or taken < limit):
                arrival, tokens, _ = replica.waiting.popleft()
                taken += tokens
                ended.append(arrival)
            replica.free -= 1
            done = now + LAUNCH_SECONDS + taken / TOKENS_PER_SECOND
            heapq.heappush(events, (done, len(latencies) + index, index, ended))

    def advance(until: float) -> None:
        while events and events[0][0] <= until:
            now, _, index, ended = heapq.heappop(events)
            replica = replicas[index]
            if ended:
                replica.free += 1
                replica.unanswered -= len(ended)
                latencies.extend(now - arrival for arrival in ended)
            start(index, now)

    for number, (arrival, tokens) in enumerate(zip(arrivals, lengths, strict=True)):
        advance(arrival)
        index = route(replicas, number, rng)
        replica = replicas[index]
        replica.http_free_at = max(replica.http_free_at, arrival) + HTTP_SECONDS
        replica.waiting.append((arrival, tokens, replica.http_free_at))
        replica.unanswered += 1
        heapq.heappush(events, (replica.http_free_at, number, index, []))
        if number % 50 == 0:
            waited += sum(item[1] for item in replica.waiting) / (PROCESSES * TOKENS_PER_SECOND) / math.ceil(total / 50)
    advance(math.inf)
    return latencies, waited


def _line(count: int, load: float, route: Route, seconds: float, long_share: float = 0.0) -> str:
    latencies, waited = simulate(count, load, route, seconds, long_share=long_share)
    p50, p99 = (np.quantile(latencies, q) * 1e3 for q in (0.5, 0.99))
    rate = len(latencies) / seconds
    return f"{count:8} {load:5.0%} {route.__name__:>15} {rate:11,.0f} {p50:7.1f} {p99:8.1f} {waited:9.3f}" + (
        f"  {long_share:.0%} reviews" if long_share else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000, help="requests in each line")
    wanted = parser.parse_args().requests
    print("measured, half load (1,170 requests/s): p50 8.8 ms, p99 20.6 ms (bert-serve with two workers)")
    print("replicas  load           route  requests/s  p50 ms   p99 ms  waiting s")
    for count in (1, 10, 100):
        for load in (0.5, 0.7, 0.9, 1.1):
            for route in (at_random, in_turn, shorter_of_two):
                if count > 1 or route is at_random:
                    print(_line(count, load, route, wanted / (count * CAPACITY * load)), flush=True)
    for route in (at_random, in_turn, shorter_of_two):
        print(_line(100, 0.7, route, wanted / (100 * CAPACITY * 0.7), long_share=0.05), flush=True)


if __name__ == "__main__":
    main()
