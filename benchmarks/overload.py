"""The service at ten times its capacity: `python -m benchmarks.overload`.

A closed loop measures the capacity. In turns with it, requests are sent at random times at a multiple of that
(`--factor`). As many accepted requests should be answered in time as without the overload, and memory should not grow.
Load generator and server share the processor, so requests carry many sentences: sending them costs little.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections import Counter
from pathlib import Path

from benchmarks import checkpoints, load, texts
from benchmarks.servers import Server, service

_WARM_UP = 2.0


def resident(server: Server) -> float:
    """Memory of the server's processes in MB. Shared memory counts once."""
    assert server.process is not None
    return _resident(server.process.pid)


def _resident(pid: int) -> float:
    process = Path(f"/proc/{pid}")
    found = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
    children = " ".join(path.read_text() for path in process.glob("task/*/children")).split()
    return (int(found[1]) / 1024 if found else 0.0) + sum(map(_resident, map(int, children)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--factor", type=float, default=10, help="offered load over capacity")
    parser.add_argument("--inputs", type=int, default=32, help="sentences in each request")
    parser.add_argument("--deadline-ms", type=int, default=2000, help="of every request")
    parser.add_argument("--seconds", type=float, default=20, help="of overload in each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    bodies = load.bodies_of(texts.load(None, 4096), options.inputs)
    flags = ["--request-timeout-ms", str(options.deadline_ms)]
    server = service(*checkpoints.directories(options.checkpoints), options.dtype, flags)
    server.start()
    try:
        common = {"inputs": options.inputs, "warm_up": _WARM_UP, "deadline": options.deadline_ms / 1e3}
        calm = [load.measure(server.url, bodies, seconds=8, connections=8, **common)]
        rate = options.factor * calm[0].throughput / options.inputs
        load.measure(server.url, bodies, seconds=4, rate=rate, **common)  # the first overload takes memory that stays
        before, used, busy = resident(server), 0.0, []
        for _ in range(options.rounds):
            began = time.process_time()
            busy.append(load.measure(server.url, bodies, seconds=options.seconds, rate=rate, **common))
            used += time.process_time() - began
            calm.append(load.measure(server.url, bodies, seconds=8, connections=8, **common))
        after = resident(server)
    finally:
        server.stop()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.inputs} sentences a request")
    print("capacity:", ", ".join(f"{report.throughput:,.0f}" for report in calm), "sentences/s")
    statuses: Counter[str] = sum((report.statuses for report in busy), Counter())
    print(f"{options.factor:g} times of that: statuses {dict(sorted(statuses.items()))}")
    share = used / (options.rounds * (_WARM_UP + options.seconds)) / (os.cpu_count() or 1)
    print(f"the load generator took {share:.0%} of all cores")
    ratios = [
        2 * overloaded.goodput / (calm[i].throughput + calm[i + 1].throughput) for i, overloaded in enumerate(busy)
    ]
    rounds = ", ".join(f"{ratio:.0%}" for ratio in ratios)
    print(f"goodput: {statistics.median(ratios):.0%} of the capacity before and after (rounds: {rounds})")
    for q in (0.5, 0.99, 1.0):
        latency = max(report.percentile(q) for report in busy) / busy[0].deadline
        print(f"latency of answered requests, p{q * 100:g} of the worst round: {latency:.0%} of the deadline")
    print(f"memory: {before:.0f} MB after 4 s of overload, {after:.0f} MB at its end")


if __name__ == "__main__":
    main()
