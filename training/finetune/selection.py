"""How good a fine-tuned classifier is on dev, and which of several seeds is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from training.evaluate.classification import Answers
from training.recipe import Recipe
from training.runtime.files import read_json, write_json

FULL_WEIGHT_TEXTS = 200
"""Dev texts from which a source has as much weight as any other: a single text would else outvote a thousand."""


def mean_score(answers: Mapping[str, Answers]) -> tuple[float, float]:
    """`Problem.merit` and the loss, as weighted means over dev sources; see `source_weights`."""
    weights = source_weights(len(each.targets) for each in answers.values())
    figures = [(each.problem.merit(each.figures()[each.problem.chosen]), each.loss) for each in answers.values()]
    score, loss = np.average(figures, axis=0, weights=weights).tolist()
    return score, loss


def source_weights(texts: Iterable[int], limit: int = FULL_WEIGHT_TEXTS) -> list[int]:
    """Weight of each dev source, by its number of texts.

    >>> source_weights([1000, 500, 15])
    [200, 200, 15]
    """
    return [min(count, limit) for count in texts]


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Figures of one seed's weights on dev; None without a dev part."""

    seed: int
    dev_score: float | None
    """`Problem.merit`, mean over the dev sources: higher is better."""
    dev_loss: float | None


def seeds_of(recipe: Recipe) -> tuple[int, ...]:
    """The seeds to train with, at least one."""
    return recipe.finetune.seeds or (recipe.seed,)


def seed_folder(recipe: Recipe, seed: int) -> Path:
    """Log, checkpoints and model of one seed's run."""
    return recipe.folder / "finetune" / f"seed-{seed}"


def best_seed(results: Sequence[SeedResult]) -> SeedResult:
    """The one with the best score on dev, then with the lowest loss, then the first."""
    return max(results, key=lambda r: (r.dev_score or 0.0, -(r.dev_loss or 0.0)))


def save_results(recipe: Recipe, results: Sequence[SeedResult]) -> None:
    """Write `finetune/results.json`."""
    write_json(recipe.folder / "finetune" / "results.json", [asdict(result) for result in results])


def load_results(recipe: Recipe) -> list[SeedResult]:
    """Results of the last finished fine-tuning; empty without one."""
    rows = read_json(recipe.folder / "finetune" / "results.json") or []
    scores = [row.get("dev_score", row.get("dev_accuracy")) for row in rows]  # as 0.2 called it
    return [SeedResult(row["seed"], score, row["dev_loss"]) for row, score in zip(rows, scores, strict=True)]


def chosen_folder(recipe: Recipe) -> Path:
    """The run whose model is exported."""
    results = load_results(recipe)
    return seed_folder(recipe, best_seed(results).seed if results else seeds_of(recipe)[0])
