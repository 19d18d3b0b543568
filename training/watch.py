"""What a person sees of a run: a progress bar, and a log with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from training.run_state import Progress


class RunLog:
    """One JSON object per line, kept over resumes."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file

    def write(self, event: str, progress: Progress, figures: Mapping[str, Any]) -> None:
        where = {
            "step": progress.step,
            "tokens": progress.tokens,
            "minutes": round(progress.seconds / 60, 3),
        }
        with self.file.open("a") as stream:
            stream.write(json.dumps({"event": event, **where, **figures}) + "\n")
        text = "  ".join(f"{name} {_short(value)}" for name, value in (where | dict(figures)).items())
        tqdm.write(f"{event:10s}  {text}")


class Window:
    """Means of the figures since the last line of the log."""

    def __init__(self, progress: Progress) -> None:
        self.tokens, self.seconds = progress.tokens, progress.seconds
        self.sums: dict[str, float] = {}
        self.steps = 0

    def add(self, figures: Mapping[str, float]) -> None:
        self.steps += 1
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self, progress: Progress) -> dict[str, float]:
        seconds = max(progress.seconds - self.seconds, 1e-9)
        rate = (progress.tokens - self.tokens) / seconds
        return {name: value / self.steps for name, value in self.sums.items()} | {"tokens_per_second": rate}


class ProgressBar:
    """tqdm over the share of the budget."""

    def __init__(self, spent: float, progress: Progress) -> None:
        self.bar = tqdm(total=100, initial=min(100.0, 100 * spent))
        self.bar.bar_format = "{percentage:5.1f}%|{bar}| {elapsed}<{remaining} {postfix}"
        self.tokens, self.seconds = progress.tokens, progress.seconds

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, spent: float, progress: Progress, figures: Mapping[str, float]) -> None:
        rate = (progress.tokens - self.tokens) / max(progress.seconds - self.seconds, 1e-9)
        shown = {"loss": f"{figures.get('loss', float('nan')):.3f}", "tokens/s": f"{rate:,.0f}"}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(min(100.0, 100 * spent) - self.bar.n)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
