"""What a person sees of a run: a progress bar, and a log with one JSON object per line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from training.errors import RunError
from training.loop.checkpoint import Progress

REFRESH = 1.0
"""Seconds between updates of the bar."""


class Listener(Protocol):
    """Whoever else wants every line of the log."""

    def write(self, event: str, progress: Progress, figures: Mapping[str, Any]) -> None: ...


class RunLog:
    """One JSON object per line, kept over resumes."""

    def __init__(self, file: Path, listener: Listener | None = None) -> None:
        self.file = file
        self.listener = listener

    def write(self, event: str, progress: Progress, figures: Mapping[str, Any]) -> None:
        """Append a line and show it.

        Raises:
            RunError: the disk is full.
        """
        where = {
            "step": progress.step,
            "tokens": progress.tokens,
            "minutes": round(progress.seconds / 60, 3),
        }
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as stream:
                stream.write(json.dumps({"event": event, **where, **figures}) + "\n")
        except OSError as error:
            raise RunError(f"{self.file}: cannot be written: {error.strerror}") from error
        text = "  ".join(f"{name} {_short(value)}" for name, value in (where | dict(figures)).items())
        tqdm.write(f"{event:10s}  {text}")
        if self.listener is not None:
            self.listener.write(event, progress, figures)

    def rewind(self, step: int) -> None:
        """Forget what came after `step`, or was cut short: a run resumed there will write it again."""
        if not self.file.is_file():
            return
        kept = [json.dumps(line) + "\n" for line in self if line["step"] <= step]
        part = self.file.with_suffix(".part")
        part.write_text("".join(kept))
        os.replace(part, self.file)  # noqa: PTH105 (says what it is: atomic)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The lines that are whole."""
        if not self.file.is_file():
            return
        for line in self.file.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # the process was killed while it wrote
                continue


class Window:
    """Means of the figures over some steps. They stay on the device until somebody reads them."""

    def __init__(self, names: Sequence[str], progress: Progress, peak_flops: float | None = None) -> None:
        self.names = names
        self.tokens, self.seconds = progress.tokens, progress.seconds
        self.peak_flops = peak_flops
        self.steps = self.flops = 0
        self.rate = 0.0
        self._figures: list[Tensor] = []
        self._norms: list[Tensor] = []

    def add(self, figures: Tensor, norm: Tensor, flops: int, rate: float) -> None:
        """One step's figures (len(names),), gradient norm () and operations."""
        self.steps += 1
        self.flops += flops
        self.rate = rate
        self._figures.append(figures)
        self._norms.append(norm)

    @property
    def norms(self) -> list[float]:
        """The gradient's norm of each step."""
        return torch.stack(self._norms).tolist()

    def read(self, progress: Progress) -> dict[str, float]:
        """Means, and the speed; `gradient_norm` is the last if all are finite, else one that is not."""
        seconds = max(progress.seconds - self.seconds, 1e-9)
        means = dict(zip(self.names, torch.stack(self._figures).mean(0).tolist(), strict=True))
        norms = torch.stack(self._norms)
        broken = norms[~norms.isfinite()]
        means["gradient_norm"] = (broken[0] if len(broken) else norms[-1]).item()
        means["learning_rate"] = self.rate
        means["tokens_per_second"] = (progress.tokens - self.tokens) / seconds
        if self.peak_flops:
            means["mfu"] = self.flops / seconds / self.peak_flops
        return means


class ProgressBar:
    """tqdm over the share of the budget."""

    def __init__(self, spent: float, *, shown: bool = True) -> None:
        self.bar = tqdm(total=100, initial=min(100.0, 100 * spent), disable=not shown)
        self.bar.bar_format = "{percentage:5.1f}%|{bar}| {elapsed}<{remaining} {postfix}"
        self._updated = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    @property
    def due(self) -> bool:
        """Whether the last update is old."""
        return time.monotonic() - self._updated >= REFRESH

    def update(self, spent: float, figures: Mapping[str, float]) -> None:
        self._updated = time.monotonic()
        shown = {"loss": f"{figures['loss']:.3f}", "tokens/s": f"{figures['tokens_per_second']:,.0f}"}
        if "mfu" in figures:
            shown["MFU"] = f"{figures['mfu']:.0%}"
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(min(100.0, 100 * spent) - self.bar.n)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
