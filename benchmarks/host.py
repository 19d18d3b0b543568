"""CPU time outside the network: `python -m benchmarks.host`; `--beside FOLDER` alternates with another checkout.

The figures are CPU microseconds of the HTTP process for each request and each sentence, and of the inference processes
for each sentence. The network has one layer of 32, and its forward pass ends at once. CPU time hardly depends on the
machine's other work, requests per second do. wrk generates the load.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks import texts, wrk
from benchmarks.checkpoints import make_random
from benchmarks.servers import ROOT, Server, service

_INSTANT = Path(__file__).parent / "instant"
_TICK = 1e6 / os.sysconf("SC_CLK_TCK")
_WARM_UP = 1.0
LOADS = {"64 × 1": (64, 1), "8 × 32": (8, 32)}
"""Connections, and sentences in a request."""


def cpu_microseconds(pid: int) -> tuple[float, float]:
    """CPU time of a process, and of all its descendants."""
    own, children = 0.0, 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        session, used = int(fields[3]), (int(fields[11]) + int(fields[12])) * _TICK
        if session == pid:  # `Server.start` makes a session for each
            own, children = (used, children) if int(folder.name) == pid else (own, children + used)
    return own, children


def measure(server: Server, sentences: Sequence[str], load: str, seconds: float) -> dict[str, float]:
    """The figures of one run."""
    assert server.process is not None
    connections, inputs = LOADS[load]
    bodies = server.bodies(sentences, inputs)
    wrk.measure(server.url, bodies, seconds=_WARM_UP, connections=connections)
    before = cpu_microseconds(server.process.pid)
    report = wrk.measure(server.url, bodies, seconds=seconds, connections=connections, inputs=inputs)
    after = cpu_microseconds(server.process.pid)
    requests = report.statuses["200"]
    http, inference = (b - a for a, b in zip(before, after, strict=True))
    return {
        f"HTTP us/{'request' if inputs == 1 else 'sentence'}": http / requests / inputs,
        "inference us/sentence": inference / requests / inputs,
        "requests/s": requests / report.seconds,
        "p50 ms": report.percentile(0.5) * 1e3,
    }


def servers_of(trees: Sequence[Path], options: argparse.Namespace, folder: Path) -> list[Server]:
    """One server for each tree."""
    if options.checkpoints is None:
        make_random(folder, num_hidden_layers=1, hidden_size=32)
    root, instant = (options.checkpoints or folder).resolve(), [] if options.computes else [_INSTANT]
    made = []
    for tree in trees:
        server = service(root / "pretrained", root / "sentiment", options.dtype)
        server.folder = tree
        server.environ = {"PYTHONPATH": os.pathsep.join(map(str, (*instant, tree, tree / "client")))}
        made.append(server)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="folder of another checkout, measured in turns")
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--computes", action="store_true", help="compute the forward pass")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4, help="of one measurement")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    trees = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    sentences = texts.load(None, 4096)
    found: defaultdict[tuple[str, str], list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = servers_of(trees, options, Path(folder))
        for server in servers:
            server.start()
            stack.callback(server.stop)
            server.freeze()
        for _ in range(options.rounds):
            for load in LOADS:
                runs = []
                for server in servers:
                    server.thaw()
                    runs.append(measure(server, sentences, load, options.seconds))
                    server.freeze()
                for name in runs[0]:
                    found[load, name].append([run[name] for run in runs])
    print(
        "| load | figure | " + " | ".join(str(tree.name) for tree in trees) + (" | ratio |" if options.beside else " |")
    )
    print("|---|---|" + "---|" * (len(trees) + bool(options.beside)))
    for (load, name), rounds in found.items():
        cells = [f"{median(column):,.1f}" for column in zip(*rounds, strict=True)]
        if options.beside:
            cells.append(f"{median(own / other for own, other in rounds):.2f}")
        print(f"| {load} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
