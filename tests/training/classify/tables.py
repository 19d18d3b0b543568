"""Tables of reviews, and `classify` up to the recipe."""

from __future__ import annotations

import argparse
import csv
import random
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.training.texts import review, sentence
from training.classify.arguments import add_arguments, stated_values
from training.classify.command import Plan, Survey, plan, survey

Row = Mapping[str, Any]


def reviews(count: int = 60) -> list[dict[str, Any]]:
    """Rows of a shop: `sentiment` is the label; `stars` and `verified` could be, `id` and `price` could not."""
    rng = random.Random(5)
    rows = []
    for i in range(count):
        good = i % 2 == 1
        rows.append(
            {
                "id": 1000 + i,
                "title": f"{sentence(rng)} {i}",
                "body": review(rng, good=good),
                "stars": rng.choice([4, 5] if good else [1, 2]),
                "verified": rng.choice(["yes", "no"]),
                "price": f"{rng.random() * 100:.3f}",
                "sentiment": "positive" if good else "negative",
            }
        )
    return rows


def only(rows: Iterable[Row], *columns: str) -> list[dict[str, Any]]:
    """The rows with these columns."""
    return [{column: row[column] for column in columns} for row in rows]


def write_csv(file: Path, rows: Sequence[Row], encoding: str = "utf-8", **options: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding=encoding, newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return file


def _parse(table: Path | str, output: Path | str, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_known_args([str(table), "--output", str(output), *arguments])


def planned(table: Path | str, output: Path | str, *arguments: str) -> Plan:
    """What `classify` plans for a table; the recipe is in the output folder."""
    given, overrides = _parse(table, output, arguments)
    return plan(given, overrides, ["classify", str(table), *arguments])


def surveyed(table: Path | str, *arguments: str) -> Survey:
    """What `classify` reads from a table, also for problems that cannot be trained."""
    given, overrides = _parse(table, "unused", arguments)
    return survey(given, stated_values(overrides))


def written(plan: Plan) -> dict[str, Any]:
    """The recipe of a plan as it is in the file."""
    return tomllib.loads((plan.recipe.folder / "recipe.toml").read_text(encoding="utf-8"))
