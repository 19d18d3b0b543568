"""Which weights of a fine-tuning run are kept, and which of several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from training.evaluate.classification import ClassificationReport
from training.recipe import Recipe
from training.runtime.files import read_json, write_json, write_tensors

FULL_WEIGHT_TEXTS = 200
"""Dev texts from which a source has as much weight as any other: a single text would else outvote a thousand."""


class Score(NamedTuple):
    """How good weights are on dev, as means over its sources; a greater score is better."""

    accuracy: float
    negative_loss: float
    """Decides between equal accuracies."""


def mean_score(reports: Mapping[str, ClassificationReport]) -> Score:
    """Weighted mean over dev sources; see `source_weights`."""
    weights = source_weights(report.examples for report in reports.values())
    accuracy, loss = (
        float(np.average([getattr(report, key) for report in reports.values()], weights=weights))
        for key in ("balanced_accuracy", "loss")
    )
    return Score(accuracy, -loss)


def source_weights(texts: Iterable[int], limit: int = FULL_WEIGHT_TEXTS) -> list[int]:
    """Weight of each dev source, by its number of texts.

    >>> source_weights([1000, 500, 15])
    [200, 200, 15]
    """
    return [min(count, limit) for count in texts]


@dataclass(slots=True)
class BestCheckpoint:
    """The best weights of a run so far, in a file that survives a kill: steps that are repeated score the same."""

    file: Path
    step: int = -1
    score: Score = field(default=Score(-1.0, 0.0))  # below any

    def load(self, *, resumed: bool) -> None:
        """Continue from the file; if the run is not resumed, delete it, because it may be about other texts."""
        if not resumed:
            self.file.unlink(missing_ok=True)
        elif self.file.is_file():
            state = torch.load(self.file, map_location="cpu", weights_only=True)
            self.step, self.score = state["step"], Score(*state["score"])

    def update(self, step: int, score: Score, model: nn.Module) -> None:
        """Keep the model if it is better than all before.

        Raises:
            RunError: the disk is full.
        """
        if score > self.score:
            write_tensors(self.file, {"step": step, "score": tuple(score), "model": model.state_dict()})
            self.step, self.score = step, score

    def restore(self, model: nn.Module) -> None:
        """Give the model its best weights; without any evaluation it keeps those it has."""
        if self.file.is_file():
            model.load_state_dict(torch.load(self.file, map_location="cpu", weights_only=True)["model"])


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The best weights of one seed."""

    seed: int
    step: int | None
    """None without a dev part; then the last weights are kept."""
    dev_accuracy: float | None
    """Balanced accuracy, mean over the dev sources."""
    dev_loss: float | None


def seeds_of(recipe: Recipe) -> tuple[int, ...]:
    """The seeds to train with, at least one."""
    return recipe.finetune.seeds or (recipe.seed,)


def seed_folder(recipe: Recipe, seed: int) -> Path:
    """Log, checkpoints and model of one seed's run."""
    return recipe.folder / "finetune" / f"seed-{seed}"


def best_seed(results: Sequence[SeedResult]) -> SeedResult:
    """The most accurate on dev, then the one with the lowest loss, then the first."""
    return max(results, key=lambda r: (r.dev_accuracy or 0.0, -(r.dev_loss or 0.0)))


def save_results(recipe: Recipe, results: Sequence[SeedResult]) -> None:
    """Write `finetune/results.json`."""
    write_json(recipe.folder / "finetune" / "results.json", [asdict(result) for result in results])


def load_results(recipe: Recipe) -> list[SeedResult]:
    """Results of the last finished fine-tuning; empty without one."""
    return [SeedResult(**row) for row in read_json(recipe.folder / "finetune" / "results.json") or []]


def chosen_folder(recipe: Recipe) -> Path:
    """The run whose model is exported."""
    results = load_results(recipe)
    return seed_folder(recipe, best_seed(results).seed if results else seeds_of(recipe)[0])
