"""The result of a benchmark: a table of figures with the machine, the versions and the command.

`--json benchmarks/results/NAME.json` saves it, and `python -m tests.docs.tables` renders the files of that folder as
the tables of docs/benchmarks.md.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import shlex
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

from model.inference.cpu_features import available_cpus

FOLDER = Path(__file__).parent / "results"


def result(
    columns: Mapping[str, str], rows: Mapping[str, Sequence[Any]], notes: str, packages: Sequence[str] = ()
) -> dict[str, Any]:
    """The values to save.

    Args:
        columns: name of each column but the first, and Python's format of its figures, such as ",.0f".
        rows: figures of each contestant, None for missing ones.
        notes: further text about the figures.
        packages: packages whose versions are recorded beside torch's, if they are installed.
    """
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    lines = dict(re.findall(r"^(.*?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    processor = "{model name}, family {cpu family}, model {model}".format_map(defaultdict(lambda: "unknown", lines))
    return {
        "machine": f"{processor}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": available_cpus(),
        "versions": {name: installed[name] for name in ("torch", *packages) if name in installed},
        "date": datetime.date.today().isoformat(),
        "commit": described.stdout.strip() or "unknown",
        "command": shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "notes": notes,
        "columns": dict(columns),
        "rows": {name: list(figures) for name, figures in rows.items()},
    }


def table(made: Mapping[str, Any]) -> str:
    """A result in Markdown: machine, versions and command, and the figures."""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    where = f"**{made['machine']}**, {made['cores']} cores, commit {made['commit']}, {made['date']}; {versions}."
    specs = made["columns"].values()
    lines = [["", *made["columns"]], ["---"] * (1 + len(specs))]
    for name, figures in made["rows"].items():
        lines.append([name, *(_cell(figure, spec) for figure, spec in zip(figures, specs, strict=True))])
    rows = "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
    where = textwrap.fill(f"{where} {made['notes']}", 120, break_on_hyphens=False)
    return f"\n{where}\n\n{rows}\n\n"


def _cell(figure: float | str | None, spec: str) -> str:
    if figure is None:
        return "–"
    return figure if isinstance(figure, str) else format(figure, spec)


def ratio(speeds: Sequence[float], others: Sequence[float]) -> str:
    """Ratio of speeds, round by round: the median and the extremes."""
    ratios = [own / other if other else math.inf for own, other in zip(speeds, others, strict=True)]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def publish(made: Mapping[str, Any], file: Path | None) -> None:
    """Print a result, and save it if `file` is given."""
    print(table(made))
    if file is not None:
        file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
