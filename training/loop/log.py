"""The output of a run: lines for the console, and a log with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.loop.checkpoint import TrainState


class RunLog:
    """`log.jsonl` of a run, kept over resumes."""

    def __init__(self, file: Path) -> None:
        self.file = file

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


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, with joined keys.

    >>> flatten({"seed": 1, "pretrain": {"dropout": 0.1, "examples": {"short_length": 128}}})
    {'seed': 1, 'pretrain.dropout': 0.1, 'pretrain.examples.short_length': 128}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({', '.join(f'{name} {_short(inner)}' for name, inner in value.items())})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
