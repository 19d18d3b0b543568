"""Ten times more than the service can do: `python -m benchmarks.overload`.

First its capacity, by a closed loop, and once more at the end; between them requests come at random times at a
multiple of that. What is accepted should be answered in time, as much of it as without the overload, and the
memory should not grow. Load generator and server share the processor, so requests carry many sentences: sending
them costs little.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

from benchmarks import checkpoints, load, texts
from benchmarks.servers import Server, service

_WARM_UP = 2.0


def resident(server: Server) -> float:
    """Memory of the server's process in MB."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--factor", type=float, default=10, help="offered load over capacity")
    parser.add_argument("--inputs", type=int, default=32, help="sentences in each request")
    parser.add_argument("--deadline-ms", type=int, default=2000, help="of every request")
    parser.add_argument("--seconds", type=float, default=20, help="of overload")
    options = parser.parse_args()
    bodies = load.bodies_of(texts.load(None, 4096), options.inputs)
    flags = ["--request-timeout-ms", str(options.deadline_ms)]
    server = service(*checkpoints.directories(options.checkpoints), options.dtype, flags)
    server.start()
    try:
        common = {"inputs": options.inputs, "warm_up": _WARM_UP, "deadline": options.deadline_ms / 1e3}
        calm = load.measure(server.url, bodies, seconds=8, connections=8, **common)
        rate = options.factor * calm.throughput / options.inputs
        load.measure(server.url, bodies, seconds=4, rate=rate, **common)  # memory that overload needs at all
        before, used = resident(server), time.process_time()
        busy = load.measure(server.url, bodies, seconds=options.seconds, rate=rate, **common)
        after, used = resident(server), time.process_time() - used
        again = load.measure(server.url, bodies, seconds=8, connections=8, **common)
    finally:
        server.stop()
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.inputs} sentences a request"
    )
    print(f"capacity: {calm.throughput:,.0f} sentences/s before, {again.throughput:,.0f} after")
    print(f"{options.factor:g} times of that: statuses {dict(sorted(busy.statuses.items()))}")
    share = used / (_WARM_UP + options.seconds) / (os.cpu_count() or 1)
    print(f"the load generator took {share:.0%} of all cores meanwhile")
    print(f"goodput: {2 * busy.goodput / (calm.throughput + again.throughput):.0%} of capacity")
    shares = "  ".join(f"p{q * 100:g} {busy.percentile(q) / busy.deadline:.0%}" for q in (0.5, 0.99, 1.0))
    print(f"latency of what was answered, in shares of the deadline: {shares}")
    print(f"memory: {before:.0f} MB after 4 s of overload, {after:.0f} MB at its end")


if __name__ == "__main__":
    main()
