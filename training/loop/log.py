"""The output of a run: lines for the console, and a log with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.errors import RunError
from training.loop.checkpoint import TrainState


class RunLog:
    """`log.jsonl` of a run, kept over resumes. On request, TensorBoard event files in `tensorboard/` beside it.

    Raises:
        RunError: TensorBoard is requested, and is not installed.
    """

    def __init__(self, file: Path, *, tensorboard: bool = False) -> None:
        self.file = file
        self._board: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise RunError("tensorboard is not installed: pip install tensorboard") from error
            self._board = SummaryWriter(file.with_name("tensorboard"))

    def write(self, event: str, state: TrainState, figures: Mapping[str, Any]) -> None:
        """Append a line."""
        place = {"step": state.step, "tokens": state.tokens, "minutes": round(state.seconds / 60, 3)}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.file.open("a") as stream:
                stream.write(json.dumps({"event": event, **place, **figures}) + "\n")
        except OSError as error:
            error.filename = str(self.file)  # the error of a full disk names no file
            raise
        if self._board is not None:
            for name, value in flatten(figures, "/").items():
                add = self._board.add_text if isinstance(value, str) else self._board.add_scalar
                add(f"{event}/{name}", value, state.step)
            self._board.flush()

    def rewind(self, step: int) -> None:
        """Remove incomplete lines and those after `step`, because a run that resumes there writes them again."""
        kept = [json.dumps(line) + "\n" for line in self if line["step"] <= step]
        part = self.file.with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)  # missing if another node had rank 0 until now
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


def line_of(event: str, progress: str, figures: Mapping[str, Any]) -> str:
    """A line of the console with figures. If there are several sources and their means, it has only the means."""
    means = {name: value for name, value in figures.items() if not isinstance(value, Mapping)}
    text = "  ".join(f"{name} {_short(value)}" for name, value in (means or figures).items())
    return f"{event:10s}  {progress}  {text}"


def time_left(seconds: float) -> str:
    """A time in hours or minutes.

    >>> time_left(130), time_left(3700)
    ('2:10 min', '1:01 h')
    """
    unit, whole = ("h", seconds / 60) if seconds >= 3600 else ("min", seconds)
    return f"{int(whole) // 60}:{int(whole) % 60:02d} {unit}"


def flatten(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Nested mappings as one, with joined keys.

    >>> flatten({"seed": 1, "pretrain": {"dropout": 0.1, "examples": {"short_length": 128}}})
    {'seed': 1, 'pretrain.dropout': 0.1, 'pretrain.examples.short_length': 128}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {name + separator + key: inner for key, inner in flatten(value, separator).items()}
        else:
            flat[name] = value
    return flat


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({', '.join(f'{name} {_short(inner)}' for name, inner in value.items())})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
