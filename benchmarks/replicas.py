"""`python -m benchmarks.replicas 1 8`: one service on a device, and several that share it.

Each service has its own process of the load generator, and an equal share of the connections. On a GPU, more services
help while HTTP, on one core of each, is the limit.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks import checkpoints, load, texts
from benchmarks.load import Report
from benchmarks.servers import Server, service


def measure(servers: Sequence[Server], sentences: Sequence[str], inputs: int, seconds: float) -> Report:
    """The sum of all services, with 64 connections for each and `inputs` sentences in a request."""
    with ProcessPoolExecutor(len(servers), multiprocessing.get_context("spawn")) as pool:
        runs = [
            pool.submit(load.measure, server.url, server.bodies(sentences, inputs), seconds=seconds, inputs=inputs)
            for server in servers
        ]
        reports = [run.result() for run in runs]
    latencies = sorted(itertools.chain.from_iterable(report.latencies for report in reports))
    return Report(seconds, latencies, sum((report.statuses for report in reports), Counter()), inputs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("counts", nargs="+", type=int, help="numbers of services to measure")
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--serve", default="", help="flags for bert-serve, such as '--device cpu --threads 1'")
    parser.add_argument("--seconds", type=float, default=3, help="of one measurement")
    options = parser.parse_args(arguments)
    sentences, directories = texts.load(None, 4096), checkpoints.directories(options.checkpoints)
    for count in options.counts:
        with ExitStack() as stack:
            servers = [service(*directories, "auto", options.serve.split()) for _ in range(count)]
            for server in servers:
                stack.callback(server.stop)
                server.start()
            for inputs in (1, 32):
                report = measure(servers, sentences, inputs, options.seconds)
                print(f"services: {count}; sentences in a request: {inputs}; {report}", flush=True)


if __name__ == "__main__":
    main()
