"""The service beside its peers: `make bench`, or `python -m benchmarks.serving`.

Every server loads the same checkpoint in the same precision. They are measured in turns, round after round,
and those whose turn it is not are stopped (SIGSTOP): noise of the machine meets all alike, so read the ratios.
Server and load generator share the processor.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import checkpoints, load, offline, texts, wrk
from benchmarks.load import Report
from benchmarks.servers import Server, contestants

Measure = Callable[[Server], Report]
_WARM_UP = 2.0
_UNDER_LOAD = 64
"""Connections."""
_LIST = 32
"""Sentences in a request that carries several."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to ask, and who can be asked so."""

    name: str
    measure: Measure
    takes: Callable[[Server], bool] = lambda _: True


def scenarios(sentences: Sequence[str], seconds: float, use_wrk: bool) -> list[Scenario]:
    def closed(server: Server, connections: int, inputs: int) -> Report:
        bodies = server.bodies(sentences, inputs)
        if use_wrk:
            wrk.measure(server.url, bodies, seconds=_WARM_UP, connections=connections)
            return wrk.measure(server.url, bodies, seconds=seconds, connections=connections, inputs=inputs)
        return load.measure(
            server.url, bodies, seconds=seconds, connections=connections, inputs=inputs, warm_up=_WARM_UP
        )

    return [
        Scenario(f"one sentence, {_UNDER_LOAD} connections", lambda s: closed(s, _UNDER_LOAD, 1)),
        Scenario(f"{_LIST} sentences, 8 connections", lambda s: closed(s, 8, _LIST), lambda s: s.lists),
        Scenario("one sentence, 1 connection", lambda s: closed(s, 1, 1)),
    ]


def take_turns(servers: Sequence[Server], scenario: Scenario, rounds: int) -> dict[str, list[Report]]:
    """Reports of each server in each round."""
    reports: dict[str, list[Report]] = {server.name: [] for server in servers if scenario.takes(server)}
    for _ in range(rounds):
        for server in servers:
            if scenario.takes(server):
                server.thaw()
                reports[server.name].append(scenario.measure(server))
                server.freeze()
    return reports


def half_load(server: Server, sentences: Sequence[str], speed: float, seconds: float, rounds: int) -> list[Report]:
    """Open loop at half of the measured throughput."""
    server.thaw()
    bodies = server.bodies(sentences, 1)
    reports = [
        load.measure(server.url, bodies, seconds=seconds, rate=speed / 2, warm_up=_WARM_UP) for _ in range(rounds)
    ]
    server.freeze()
    return reports


def table(scenario: str, reports: dict[str, list[Report]]) -> str:
    """Medians over the rounds; ratios are of the same round."""
    lines = [
        f"\n**{scenario}**\n",
        "| | sentences/s | the first is faster | p50 ms | p90 ms | p99 ms | p99.9 ms | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in reports.items():
        ratios = [
            a.throughput / b.throughput for a, b in zip(next(iter(reports.values())), own, strict=True) if b.latencies
        ]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
        latency = " | ".join(
            f"{median(report.percentile(q) for report in own) * 1e3:.1f}" for q in (0.5, 0.9, 0.99, 0.999)
        )
        errors = sum(n for report in own for status, n in report.statuses.items() if status != "200")
        lines.append(f"| {name} | {median(r.throughput for r in own):,.0f} | {spread} | {latency} | {errors} |")
    return "\n".join(lines)


def ceiling(score: offline.Scorer, sentences: Sequence[str]) -> float:
    """Sentences per second of our own backend without HTTP."""
    began = time.perf_counter()
    score(sentences)
    return len(sentences) / (time.perf_counter() - began)


def plot(reports: dict[str, dict[str, list[Report]]], file: Path) -> None:
    """Throughput as bars, one panel for each scenario."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = max(len(by_name) for by_name in reports.values())
    figure, panels = pyplot.subplots(1, len(reports), figsize=(4 * len(reports), 0.6 + 0.35 * rows), squeeze=False)
    for panel, (scenario, by_name) in zip(panels[0], reports.items(), strict=True):
        speeds = [[report.throughput for report in own] for own in by_name.values()]
        middles = [median(own) for own in speeds]
        spread = [
            [m - min(own) for m, own in zip(middles, speeds, strict=True)],
            [max(own) - m for m, own in zip(middles, speeds, strict=True)],
        ]
        colours = ["#2a6f97" if name.startswith("bert-serve") else "#b8c4cc" for name in by_name]
        panel.barh(list(by_name), middles, xerr=spread, capsize=3, color=colours)
        panel.invert_yaxis()
        panel.set_title(scenario, fontsize=9)
        panel.set_xlabel("sentences per second", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def start(servers: Sequence[Server], stack: ExitStack) -> list[Server]:
    """Those that start; the others are left out with a line."""
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
    parser.add_argument("--dtype", default=offline.native_dtypes()[0], choices=["bfloat16", "float32"])
    parser.add_argument("--only", nargs="+", help="names of peers, as far as they tell them apart")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6, help="of one measurement")
    parser.add_argument("--client", choices=["auto", "wrk", "python"], default="auto", help="auto: wrk if installed")
    parser.add_argument("--plot", type=Path, help="file for a picture")
    parser.add_argument("--serve", default="", help="flags for bert-serve, such as '--threads 2'")
    options = parser.parse_args()

    use_wrk = options.client == "wrk" or (options.client == "auto" and wrk.installed())
    sentences = texts.load(options.texts, 4096)
    directories = checkpoints.directories(options.checkpoints)
    servers = contestants(*directories, options.dtype, options.serve.split())
    if options.only is not None:
        servers = [s for s in servers if s.name.startswith(("bert-serve", *options.only))]
    score = offline.ours(directories, options.dtype)
    score(sentences[:1024])
    everything: dict[str, dict[str, list[Report]]] = {}
    with ExitStack() as stack:
        servers = start(servers, stack)
        client = "wrk" if use_wrk else "benchmarks.load"
        print(f"{options.dtype}, {os.cpu_count()} cores, load by {client}, load average {os.getloadavg()[0]:.1f}")
        limits = [ceiling(score, sentences[:1024])]
        for scenario in scenarios(sentences, options.seconds, use_wrk):
            everything[scenario.name] = take_turns(servers, scenario, options.rounds)
            print(table(scenario.name, everything[scenario.name]), flush=True)
            limits.append(ceiling(score, sentences[:1024]))
        own = [reports[servers[0].name] for reports in everything.values()]
        speed = median(report.throughput for report in own[0])
        half = half_load(servers[0], sentences, speed, options.seconds, options.rounds)
    print(table(f"one sentence, Poisson arrivals at half load ({speed / 2:,.0f}/s)", {servers[0].name: half}))
    limit = median(limits)
    print(f"\nOffline, the same backend: {limit:,.0f} sentences/s; over HTTP {speed / limit:.0%} of it with one")
    print(f"sentence in a request, {median(r.throughput for r in own[1]) / limit:.0%} with {_LIST}.")
    if options.plot:
        plot(everything, options.plot)


if __name__ == "__main__":
    main()
