"""Fine-tuning with several seeds: where each run lives, how good it was on dev, and which one was kept."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training.corpus.shards import read_json, write_json
from training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One run's best state."""

    seed: int
    step: int | None
    """None without a dev part; then the last state is the best"""
    dev_accuracy: float | None
    """Mean over the sources, of the texts that were looked at on the way"""
    dev_loss: float | None


def seeds_of(recipe: Recipe) -> tuple[int, ...]:
    """The seeds to train with, at least one."""
    return recipe.finetune.seeds or (recipe.seed,)


def seed_folder(recipe: Recipe, seed: int) -> Path:
    """Log, checkpoints and model of one seed's run."""
    return recipe.folder / "finetune" / f"seed-{seed}"


def best_of(results: Sequence[SeedResult]) -> SeedResult:
    """The most accurate on dev, then the one of the lowest loss, then the first."""
    return max(results, key=lambda r: (r.dev_accuracy or 0.0, -(r.dev_loss or 0.0)))


def save_results(recipe: Recipe, results: Sequence[SeedResult]) -> None:
    """Write `finetune/results.json`."""
    write_json(_results_file(recipe), [asdict(result) for result in results])


def load_results(recipe: Recipe) -> list[SeedResult]:
    """What finished fine-tuning left, of every seed with the last one's settings; empty if there was none."""
    return [SeedResult(**row) for row in read_json(_results_file(recipe)) or []]


def _results_file(recipe: Recipe) -> Path:
    return recipe.folder / "finetune" / "results.json"


def chosen_seed(recipe: Recipe) -> int:
    """Of the run whose model is exported."""
    results = load_results(recipe)
    return best_of(results).seed if results else seeds_of(recipe)[0]


def chosen_folder(recipe: Recipe) -> Path:
    """The run whose model is exported."""
    return seed_folder(recipe, chosen_seed(recipe))


def mean_and_spread(figures: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single one."""
    return statistics.mean(figures), statistics.stdev(figures) if len(figures) > 1 else 0.0
