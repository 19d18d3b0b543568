"""What a person sees of a run: a progress bar, and a log with one JSON object per line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from training.errors import RunError
from training.loop.state import TrainState

REFRESH_SECONDS = 1.0
"""Between updates of the bar: an update reads metrics, and so waits for a GPU."""


class Listener(Protocol):
    """Receives every line of the log, such as `training.loop.tensorboard.Board`."""

    def write(self, event: str, state: TrainState, figures: Mapping[str, Any]) -> None: ...


class RunLog:
    """`log.jsonl` of a run, kept over resumes."""

    def __init__(self, file: Path, listener: Listener | None = None) -> None:
        self.file = file
        self.listener = listener

    def write(self, event: str, state: TrainState, figures: Mapping[str, Any]) -> None:
        """Append a line and print it.

        Raises:
            RunError: the disk is full.
        """
        place = {"step": state.step, "tokens": state.tokens, "minutes": round(state.seconds / 60, 3)}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as stream:
                stream.write(json.dumps({"event": event, **place, **figures}) + "\n")
        except OSError as error:
            raise RunError(f"{self.file}: cannot be written: {error.strerror}") from error
        text = "  ".join(f"{name} {_short(value)}" for name, value in (place | dict(figures)).items())
        tqdm.write(f"{event:10s}  {text}")
        if self.listener is not None:
            self.listener.write(event, state, figures)

    def rewind(self, step: int) -> None:
        """Remove the lines after `step` and incomplete ones: a run that resumes there writes them again."""
        if not self.file.is_file():
            return
        kept = [json.dumps(line) + "\n" for line in self if line["step"] <= step]
        part = self.file.with_suffix(".part")
        part.write_text("".join(kept))
        part.replace(self.file)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The complete lines."""
        if not self.file.is_file():
            return
        for line in self.file.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # the process was killed while it wrote
                continue


class ProgressBar:
    """tqdm over the share of the budget."""

    def __init__(self, progress: float, *, shown: bool = True) -> None:
        self.bar = tqdm(total=100, initial=min(100.0, 100 * progress), disable=not shown)
        self.bar.bar_format = "{percentage:5.1f}%|{bar}| {elapsed}<{remaining} {postfix}"
        self._updated = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    @property
    def is_due(self) -> bool:
        """Whether it is time for an update."""
        return time.monotonic() - self._updated >= REFRESH_SECONDS

    def update(self, progress: float, figures: Mapping[str, float]) -> None:
        """Show the share of the budget that is spent, loss and speed."""
        self._updated = time.monotonic()
        shown = {"loss": f"{figures['loss']:.3f}", "tokens/s": f"{figures['tokens_per_second']:,.0f}"}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(min(100.0, 100 * progress) - self.bar.n)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
