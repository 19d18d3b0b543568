"""Tables of the documentation, from the code and from benchmarks: `python -m tests.docs.tables` renews them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prometheus_client.metrics_core import Metric
from pydantic.fields import FieldInfo

from app.errors import UNAVAILABLE_STATUSES
from app.http.problems import INTERNAL_ERROR, PROBLEM_TYPES
from app.observability.metrics import Metrics
from app.settings import PREFIX, Settings
from benchmarks import results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_UNSEEN = {"caller_gone"}  # codes that no caller sees, because the connection is closed


def settings() -> str:
    """Every setting of the service: variable, default, meaning."""
    fields = Settings.model_fields.items()
    return _table(
        ("variable", "default", "what it does"),
        [(f"`{PREFIX}{name.upper()}`", _default(name, field), _meaning(field)) for name, field in fields],
    )


def errors() -> str:
    """Every status and code that an answer may carry."""
    problems = [problem for problem in PROBLEM_TYPES.values() if problem.code not in _UNSEEN]
    rows = {
        (problem.status, f"`{problem.code}`", problem.title) for problem in problems if problem.code != "unavailable"
    }
    rows |= {
        (INTERNAL_ERROR.status, f"`{INTERNAL_ERROR.code}`", INTERNAL_ERROR.title),
        (503, ", ".join(f"`{code}`" for code in UNAVAILABLE_STATUSES), "Service unavailable"),
    }
    return _table(("status", "code", "meaning"), sorted(rows))


def metrics() -> str:
    """Every metric of the service, without those of `prometheus_client` about the process."""
    told = Metrics()
    told.answered("sentiment", 200, 0)
    told.latency("sentiment", {"tokenize": 0, "queue": 0, "inference": 0})
    told.inference_time.read = lambda: {0: (0.0, 0.0)}
    rows = [
        (
            f"`{_exposed(metric)}`",
            metric.type,
            metric.documentation,
        )
        for metric in told.registry.collect()
        if metric.name.startswith("bert_")
    ]
    return _table(("metric", "type", "what it counts"), rows)


def result(file: Path) -> str:
    """What a benchmark measured."""
    return results.table(json.loads(file.read_text(encoding="utf-8")))


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("serving.md", "settings"): settings,
    ("api.md", "errors"): errors,
    ("monitoring.md", "metrics"): metrics,
    **{("benchmarks.md", file.stem): partial(result, file) for file in sorted(results.FOLDER.glob("*.json"))},
}
"""(document, name of the place in it) -> what stands there."""


def place(name: str) -> re.Pattern[str]:
    """Where the table of this name stands in its document."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def _default(name: str, field: FieldInfo) -> str:
    default = field.default
    if isinstance(default, Path):
        default = default.relative_to(ROOT)
    if default in ((), None):
        return "none"
    if isinstance(default, tuple):
        default = ",".join(default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _meaning(field: FieldInfo) -> str:
    """The explanation, with the choices that it does not name."""
    meaning = field.description or ""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if all(choice in meaning for choice in choices):
        return meaning
    return f"{', '.join(f'`{choice}`' for choice in choices)}: {meaning}"


def _exposed(metric: Metric) -> str:
    """The name in `/metrics`, with the labels."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = [label for label in metric.samples[0].labels if label != "le"]
    return f"{name}{{{', '.join(labels)}}}" if labels else name


def renew(document: str, name: str, table: str) -> None:
    """Write a table into its place."""
    file = DOCS / document
    file.write_text(place(name).sub(lambda _: table, file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for (document, name), make in TABLES.items():
        renew(document, name, make())
