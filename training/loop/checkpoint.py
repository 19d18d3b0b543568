"""The state of a run on disk: written atomically, the newest that can be read is resumed."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.errors import RunError
from training.loop.average import RunningMean
from training.recipe import FinetuneConfig, PretrainConfig
from training.runtime.distributed import Processes

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

KEEP = 2

_GIVEN = {
    "model.start": "other weights",
    "pretrained": "other weights",
    "tokenizer": "another vocabulary",
    "corpus_tokens": "another corpus",
    "texts": "other texts",
}
"""What a run's identity has that is no key of the recipe."""


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    tokens: int = 0
    """Tokens trained on, special tokens included."""
    seconds: float = 0.0
    """Time spent training; evaluation and checkpoints do not count."""
    phase: int = 0
    """Which of the run's phases: 0, then 1 for the long sequences."""
    epoch: int = 0
    """Which pass over the text, in this phase."""
    position: int = 0
    """Examples consumed in this epoch."""
    other_epoch: int = 0
    other_position: int = 0
    """Where the other phase was left."""

    def change_phase(self) -> None:
        """Go on in the other phase where it was left."""
        self.phase = 1 - self.phase
        self.epoch, self.other_epoch = self.other_epoch, self.epoch
        self.position, self.other_position = self.other_position, self.position

    def copy(self) -> Progress:
        return replace(self)


class RunState:
    """Checkpoints of one run in one folder."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = dict(identity)
        """What must be equal for a run to be resumed: its part of the recipe, the corpus, the model."""

    def save(
        self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, mean: RunningMean
    ) -> Path:
        """Write everything a bit-exact resume needs, then forget all but the newest two.

        Raises:
            RunError: the disk is full or the folder not writable; earlier checkpoints are untouched.
        """
        state = {
            "identity": self.identity,
            "progress": asdict(progress),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "mean": mean.state_dict(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        file = self.folder / f"state-{progress.step:09d}.pt"
        write_tensors(file, state)
        for old in self._files()[KEEP:]:
            old.unlink()
        return file

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer, mean: RunningMean) -> Progress:
        """Load the newest checkpoint that can be read, or start at zero where there is none.

        Raises:
            RunError: the checkpoint belongs to another recipe, vocabulary or corpus.
        """
        for file in self._files():
            try:
                state = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # torch.load raises whatever the broken bytes provoke
                logger.warning("%s cannot be read (%s); falling back to the one before", file, error)
                continue
            self._check(file, state["identity"])
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            mean.load_state_dict(state.get("mean", mean.state_dict()))
            torch.set_rng_state(state["random"])
            if state["cuda_random"] and torch.cuda.is_available():
                torch.cuda.set_rng_state_all(state["cuda_random"][: torch.cuda.device_count()])
            progress = Progress(**state["progress"])
            logger.info("resuming from %s, step %d", file, progress.step)
            return progress
        return Progress()

    def _check(self, file: Path, found: Mapping[str, Any]) -> None:
        if changed := differences(found, self.identity):
            differ = ", ".join(f"{key} was {was!r}, is {now!r}" for key, (was, now) in changed.items())
            given = [_GIVEN[key] for key in changed if key in _GIVEN]
            raise RunError(
                f"{file} belongs to another run: {differ}. "
                + (f"It began with {' and '.join(given)}: delete" if given else "Restore the recipe, delete")
                + f" {self.folder} to start anew, or name another run."
            )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("state-*.pt"), reverse=True)


@contextmanager
def alone(folder: Path, group: Processes) -> Iterator[None]:
    """Keep others out of a run's folder: they would delete its checkpoints, or the corpus that it reads. The
    lock ends with the process, whatever ends it, and its forked workers do not have it. Windows has none.

    Raises:
        RunError: another process is at work there.
    """
    if sys.platform == "win32" or not group.first:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"another process is at work in {folder}: wait for its end, or give this run another name"
            ) from error
        except OSError as error:  # not every network's file system has locks
            logger.warning("%s cannot be locked (%s): start no other run in this folder", folder, error)
        yield


def identity(**parts: Mapping[str, Any] | int | str) -> dict[str, Any]:
    """What a run depends on, flat, so that a difference can be named by its key.

    >>> identity(seed=1, pretrain={"batch": 32, "examples": {"whole_word": False}})
    {'seed': 1, 'pretrain.batch': 32, 'pretrain.examples.whole_word': False}
    """
    flat: dict[str, Any] = {}
    for name, value in parts.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in identity(**value).items()}
        else:
            flat[name] = value
    return flat


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys of two identities whose values differ, with both. A key that one lacks is newer than its run, and
    had its default there."""
    tables = (("pretrain", PretrainConfig(minutes=1)), ("finetune", FinetuneConfig()))  # it needs a budget
    defaults = identity(**{name: table.model_dump(mode="json") for name, table in tables})
    values = ((key, *(given.get(key, defaults.get(key)) for given in (one, other))) for key in {*one, *other})
    return {key: (first, second) for key, first, second in sorted(values) if first != second}


def began_with(folder: Path) -> dict[str, Any]:
    """The identity of the run whose checkpoints are in a folder; empty where it cannot be known any more."""
    for file in sorted(folder.glob("state-*.pt"), reverse=True):
        try:
            return dict(torch.load(file, map_location="cpu", mmap=True, weights_only=True)["identity"])
        except Exception as error:  # torch.load raises whatever the broken bytes provoke
            logger.warning("%s cannot be read (%s)", file, error)
    return {}


def write_tensors(file: Path, state: dict[str, Any]) -> None:
    """Write a file for `torch.load` that appears whole or not at all, also if the power fails.

    Raises:
        RunError: the disk is full or the folder not writable; what was there before is untouched.
    """
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except (OSError, RuntimeError) as error:
        raise RunError(
            f"{file}: the checkpoint could not be written: {error}. Earlier ones are untouched: make "
            "room and run the same command again"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def fingerprint(model: nn.Module) -> str:
    """Equal for equal weights."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
