"""The service beside its peers: `make bench`, or `python -m benchmarks.serving`.

Every server loads the same checkpoint in the same precision. They are measured in turns, round after round, and the
other servers are stopped (SIGSTOP) meanwhile. Noise of the machine affects all alike, so read the ratios. Server and
load generator share the processor.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks import checkpoints, load, offline, results, texts, wrk
from benchmarks.load import Report
from benchmarks.servers import Server, contestants

Measure = Callable[[Server], Report]
_WARM_UP = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A number of connections and of sentences in a request, and the servers that support it."""

    name: str
    measure: Measure
    figures: dict[str, Callable[[Report], float]]
    takes: Callable[[Server], bool] = lambda _: True


def _milliseconds(q: float) -> Callable[[Report], float]:
    return lambda report: report.percentile(q) * 1e3


def scenarios(sentences: Sequence[str], seconds: float, use_wrk: bool) -> list[Scenario]:
    def closed(server: Server, connections: int, inputs: int) -> Report:
        bodies = server.bodies(sentences, inputs)
        if use_wrk:
            wrk.measure(server.url, bodies, seconds=_WARM_UP, connections=connections)
            return wrk.measure(server.url, bodies, seconds=seconds, connections=connections, inputs=inputs)
        return load.measure(
            server.url, bodies, seconds=seconds, connections=connections, inputs=inputs, warm_up=_WARM_UP
        )

    loaded = {"sentences/s": lambda report: report.throughput, "p99 ms": _milliseconds(0.99)}
    return [
        Scenario("64 × 1", lambda s: closed(s, 64, 1), loaded),
        Scenario("8 × 32", lambda s: closed(s, 8, 32), loaded, lambda s: s.lists),
        Scenario("1 × 1", lambda s: closed(s, 1, 1), {"p50 ms": _milliseconds(0.5), "p99 ms": _milliseconds(0.99)}),
    ]


def take_turns(servers: Sequence[Server], scenario: Scenario, rounds: int) -> dict[str, list[Report]]:
    """Reports of each server in each round."""
    reports: dict[str, list[Report]] = {server.name: [] for server in servers if scenario.takes(server)}
    for _ in range(rounds):
        for server in servers:
            if scenario.takes(server):
                server.thaw()
                reports[server.name].append(scenario.measure(server))
                print(f"{scenario.name}, {server.name}: {reports[server.name][-1]}", flush=True)
                server.freeze()
    return reports


def rows(asked: Sequence[Scenario], reports: Sequence[dict[str, list[Report]]]) -> dict[str, list[float | str | None]]:
    """The figures of each server, as medians over the rounds, and the first server's speed divided by each."""
    made: dict[str, list[float | str | None]] = {}
    for name, under_load in reports[0].items():
        own = [by_name.get(name, []) for by_name in reports]
        cells: list[float | str | None] = []
        for scenario, runs in zip(asked, own, strict=True):
            figures = (median(map(figure, runs)) if runs else None for figure in scenario.figures.values())
            cells += [None if figure is None or math.isnan(figure) else figure for figure in figures]
        speeds = [[run.throughput for run in runs] for runs in (next(iter(reports[0].values())), under_load)]
        errors = sum(n for runs in own for run in runs for status, n in run.statuses.items() if status != "200")
        made[name] = [*cells, results.ratio(*speeds), errors]
    return made


def ceiling(score: offline.Scorer, sentences: Sequence[str]) -> float:
    """Sentences per second of our own backend without HTTP."""
    began = time.perf_counter()
    score(sentences)
    return len(sentences) / (time.perf_counter() - began)


def start(servers: Sequence[Server], stack: ExitStack) -> list[Server]:
    """The servers that start; each of the others is left out with a line."""
    started = []
    for server in servers:
        try:
            server.start()
        except (OSError, RuntimeError) as error:
            if server is servers[0]:
                raise
            print(f"left out: {error}")
            continue
        stack.callback(server.stop)
        server.freeze()
        started.append(server)
    return started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--texts", type=Path, help="JSON Lines file of reviews; else sentences are generated")
    parser.add_argument("--dtype", default=offline.native_dtypes()[-1], choices=["bfloat16", "float32"])
    parser.add_argument("--only", nargs="+", help="peers to measure, by the beginning of their names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6, help="of one measurement")
    parser.add_argument("--client", choices=["auto", "wrk", "python"], default="auto", help="auto: wrk if installed")
    parser.add_argument("--serve", default="", help="flags for bert-serve, such as '--threads 2'")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()

    use_wrk = options.client == "wrk" or (options.client == "auto" and wrk.installed())
    sentences = texts.load(options.texts, 4096)
    directories = checkpoints.directories(options.checkpoints)
    servers = contestants(*directories, options.dtype, options.serve.split())
    if options.only is not None:
        servers = [s for s in servers if s.name.startswith(("bert-serve", *options.only))]
    score = offline.ours(directories, options.dtype)
    score(sentences[:1024])
    reports, limits = [], [ceiling(score, sentences[:1024])]
    asked = scenarios(sentences, options.seconds, use_wrk)
    with ExitStack() as stack:
        servers = start(servers, stack)
        for scenario in asked:
            reports.append(take_turns(servers, scenario, options.rounds))
            limits.append(ceiling(score, sentences[:1024]))
    columns = {f"{s.name}: {figure}": ",.1f" if "ms" in figure else ",.0f" for s in asked for figure in s.figures}
    notes = f"Load by {'wrk' if use_wrk else 'benchmarks.load'} on the same cores, {options.rounds} rounds of "
    notes += f"{options.seconds:g} s; peers in {options.dtype}. Without HTTP, one process of bert-serve with "
    notes += f"{torch.get_num_threads()} threads does {median(limits):,.0f} sentences/s in {options.dtype}."
    columns |= {"first row ÷ this row, 64 × 1": "", "errors": ",.0f"}
    results.publish(results.result(columns, rows(asked, reports), notes, ("transformers", "litserve")), options.json)


if __name__ == "__main__":
    main()
