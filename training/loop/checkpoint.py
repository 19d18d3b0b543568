"""Checkpoints of a run: written atomically; the newest readable one is resumed."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.errors import RunError
from training.examples.loader import Position
from training.runtime.distributed import DistContext
from training.runtime.files import read_json, write_json, write_tensors

KEEP = 2
"""Checkpoints to keep. The older one is used if the newest cannot be read."""

BEFORE_DECAY = "before-decay.pt"
"""The state when the learning rate begins to fall: a run with a larger budget continues from here, because a decayed
network would have to be warmed up again."""

FINISHED = "finished.json"
"""The record of a finished run, which has no states any more: its identity, budget and progress."""

HASHES = {
    "initial_weights": "the starting network has changed: its files, or its number of positions "
    "(finetune.max_length, pretrain.examples.long_length); a run under a new name needs finetune.pretrained",
    "tokenizer": "the vocabulary has changed",
    "text": "the training text has changed",
    "texts": "the training texts have changed",
    "teacher": "the teacher has changed",
}
"""What an error says of each key that is a hash."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TrainState:
    """Progress of a run; with weights and optimizer, all that a bit-exact resume needs."""

    step: int = 0
    """Optimizer steps."""
    tokens: int = 0
    """Tokens trained on, special tokens and padding included."""
    micro_batches: int = 0
    """Micro-batches trained on, over all ranks."""
    seconds: float = 0.0
    """Time spent training; evaluation and checkpoints do not count."""
    warmup_tokens: int = 0
    """Tokens of the warm-up, fixed when the run starts: a larger budget does not warm it up again."""
    lanes: dict[int, Position] = field(default_factory=dict)
    """Position of each lane of the examples (training.examples.loader)."""


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Checkpoints of one run in one folder. Only rank 0 writes. On resume every rank looks into its folder, and the
    newest state of all ranks is sent to all: after a restart another node, with another disk, may have rank 0."""

    folder: Path
    identity: Mapping[str, Any]
    """What a resumed run must have in common with the run that it continues: settings, text, first weights."""
    budget_tokens: int
    parts: Mapping[str, Any]
    """Model, optimizer and weight average by name: what has `state_dict` and `load_state_dict`."""
    dist: DistContext

    def save(self, state: TrainState, *, before_decay: bool = False, has_decayed: bool = True) -> None:
        """Write everything that a bit-exact resume needs, and remove all checkpoints but this one and the one before.
        All ranks call it.

        Args:
            before_decay: keep it beside the others, for a later run with a larger budget.
            has_decayed: whether the learning rate has begun to fall.

        Raises:
            RunError: the disk is full or the folder is read-only; earlier checkpoints are unchanged.
        """
        lanes: dict[int, Position] = {}
        # A rank knows old positions of the lanes of other ranks.
        for known in self.dist.all_gather(state.lanes):
            lanes |= {lane: max(position, lanes.get(lane, position)) for lane, position in known.items()}
        state.lanes = lanes
        if not self.dist.is_main:
            return
        contents = {
            "identity": dict(self.identity),
            "state": asdict(state),
            "budget_tokens": self.budget_tokens,
            "has_decayed": has_decayed,
            **{name: part.state_dict() for name, part in self.parts.items()},
        }
        if before_decay:
            write_tensors(self.folder / BEFORE_DECAY, contents)
            return
        file = self.folder / f"state-{state.step:09d}.pt"
        write_tensors(file, contents)
        files = _files(self.folder)
        at = files.index(file)
        # Those with more steps are of the smaller budget that this run extends.
        for other in (*files[:at], *files[at + KEEP :], *self.folder.glob("state-*.part")):
            other.unlink()
        reopen_run(self.folder)

    def finished(self) -> TrainState | None:
        """The progress of a run that `close_run` has closed, as rank 0 finds it; None if there is none, or if a larger
        budget continues it.

        Raises:
            RunError: the run has other settings, vocabulary or text.
        """
        record = self.dist.all_gather(read_json(self.folder / FINISHED))[0]
        if record is None:
            return None
        self.dist.check_equal(self.identity)
        self._check(record["identity"])
        if self.budget_tokens <= record["budget_tokens"]:
            return TrainState(**record["state"])
        if not any(self.dist.all_gather((self.folder / BEFORE_DECAY).is_file())):
            logger.info("the budget is larger than that of the finished run: training starts again")
        return None

    def resume(self) -> TrainState | None:
        """Load the checkpoint to continue from, on all ranks; None without one.

        Raises:
            RunError: the checkpoint belongs to a run with other settings, vocabulary or text, or to an unfinished one
                with a larger budget.
        """
        self.dist.check_equal(self.identity)
        own = self._find()
        found = self.dist.broadcast_newest(own, own["state"]["step"] if own else 0)
        if found is None:
            return None
        self._check(found["identity"])
        for name, part in self.parts.items():
            part.load_state_dict(found[name])
        state = TrainState(**found["state"])
        half = state.tokens / max(1, state.step) / 2  # a run's last step is the one that is nearest to its budget
        if self.budget_tokens <= state.tokens + half < found["budget_tokens"]:
            raise RunError(
                f"{self.folder} has trained {state.tokens:,} of {found['budget_tokens']:,} tokens, and a budget of "
                f"{self.budget_tokens:,} would end it here, before its learning rate is 0. Continue with the larger "
                "budget, delete the folder to start again, or give this run another name"
            )
        logger.info("resuming at step %d", state.step)
        return state

    def _find(self) -> dict[str, Any] | None:
        newest = next(filter(None, map(_read, _files(self.folder))), None)
        file = self.folder / BEFORE_DECAY
        if not file.is_file() or (newest and self.budget_tokens <= newest["budget_tokens"]):
            return newest
        if newest and not newest.get("has_decayed", True):  # the file is of an earlier, smaller budget
            return newest
        before = _read(file)
        if before is None or (newest and newest["state"]["step"] <= before["state"]["step"]):
            return newest
        self._check(before["identity"])
        logger.info("continuing from the state before the learning rate fell")
        return before

    def _check(self, found: Mapping[str, Any]) -> None:
        differing = [key for key in sorted({*found, *self.identity}) if found.get(key) != self.identity.get(key)]
        if not differing:
            return
        changed = [HASHES.get(key, f"{key} was {found.get(key)!r}, is {self.identity.get(key)!r}") for key in differing]
        recipe = read_json(self.folder / "recipe.json") or {}
        began = f" It began with {shlex.join([recipe['loaded'], *recipe['overrides']])}." if recipe else ""
        raise RunError(
            f"{self.folder} belongs to another run: {', '.join(changed)}.{began} Restore that, delete "
            "the folder to start again, or give this run another name"
        )


def close_run(folder: Path, **more: Any) -> None:
    """Replace the states of a finished run, whose weights are elsewhere by now, by a record of it with `more` in it. A
    larger budget continues from `BEFORE_DECAY`; if the learning rate has not fallen, it needs the newest state, which
    is kept then."""
    files = _files(folder)
    newest = _read(files[0]) if files else None
    if newest is None:
        return
    has_decayed = newest.get("has_decayed", True)
    if has_decayed:
        record = {name: newest[name] for name in ("identity", "budget_tokens")}
        write_json(folder / FINISHED, record | {"state": newest["state"] | {"lanes": {}}} | more)
    for file in files if has_decayed else files[1:]:
        file.unlink()


def reopen_run(folder: Path) -> None:
    """Forget that a run has finished: it goes on, or its weights are gone."""
    (folder / FINISHED).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """States, the newest first."""
    return sorted(folder.glob("state-*.pt"), reverse=True)


def weights_hash(model: nn.Module) -> str:
    """Hash of a model's weights."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _read(file: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many types for damaged files
        logger.warning("%s cannot be read (%s); trying the checkpoint before", file, error)
        return None
    return state
