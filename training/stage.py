"""A stage of a run: a function whose result has a folder with a hash of its inputs and settings."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from training.errors import RunError
from training.loop.checkpoint import states
from training.loop.log import flatten
from training.runtime.distributed import DistContext
from training.runtime.files import DONE, read_json, write_json
from training.runtime.lock import ranks_in_turn, run_lock

VERSION = 3
"""Increase it when a change of the program changes results for the same settings."""

RUNNING = "running"
"""Name of the link to the result in progress, with its log."""

LINKS = ("tokenizer", "corpus", "labelled", "pretrain", "pretrained", "soft_labels", "finetune", "classifier", RUNNING)
"""Readable paths in the folder of a run."""

logger = logging.getLogger(__name__)

Made = Mapping[str, Any] | None
"""Additional values for the `done.json` of a stage; None if a signal stopped it."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of a run."""

    name: str
    command: str
    """The command that runs it."""
    run_folder: Path
    """Folder of the run."""
    settings: Mapping[str, Any]
    """Settings that the result depends on, in addition to the needed stages."""
    make: Callable[[Path, DistContext], Made]
    """Makes the result in a folder, or continues to do so."""
    needs: tuple[Stage, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Settings that show in the result, such as names of sources, but that change no stage that needs it."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Readable paths, and their targets in the stage's folder."""
    in_ranks: bool = False
    """Whether all ranks of `torchrun` make it together."""

    @cached_property
    def key(self) -> str:
        """Hash of the settings and of the keys of the needed stages. Order counts, because the order of labels does."""
        return _hash([VERSION, self.name, self.settings, [need.key for need in self.needs]])

    @property
    def folder(self) -> Path:
        """Folder of the result."""
        return self.run_folder / "stages" / f"{self.name}-{_hash([self.key, self.shown]) if self.shown else self.key}"

    @property
    def record(self) -> dict[str, Any] | None:
        """Contents of `done.json`; None if the result is not complete, or a file of it is missing or cut off."""
        found: dict[str, Any] | None = read_json(self.folder / DONE)
        return found if found and found["files"].items() <= _sizes(self.folder).items() else None

    def ensure(self, dist: DistContext) -> bool:
        """Make the result, unless it exists. False if a signal stopped it.

        Raises:
            RunError: a needed stage has no result, or another process makes this one.
        """
        for need in self.needs if self.record is None else ():
            need.check()
        if not self.in_ranks:
            with ranks_in_turn(self.run_folder), run_lock(self.folder):
                return self._ensure(DistContext())
        with run_lock(self.folder / f"rank-{dist.rank}"):
            return self._ensure(dist)

    def _ensure(self, dist: DistContext) -> bool:
        if any(dist.all_gather(self.record is not None)):  # nodes may not share a disk
            logger.info("%s: already there", self.folder)
        else:
            dist.check_equal(self.key)
            if dist.is_main:
                self._remove_damaged()
                link(self.run_folder / RUNNING, self.folder)
            made = self.make(self.folder, dist)
            if made is None:
                return False
            if dist.is_main:
                needs = [need.folder.name for need in self.needs]
                record = {"settings": {**self.settings, **self.shown}, "needs": needs, "files": _sizes(self.folder)}
                write_json(self.folder / DONE, {**made, **record})
        if self.record is not None:
            if follow(self.run_folder / RUNNING) == self.folder:
                (self.run_folder / RUNNING).unlink(missing_ok=True)
            for state in states(self.folder):  # not before the result is complete
                state.unlink(missing_ok=True)  # another rank may remove it at the same time
            for name, inside in self.links.items():
                link(self.run_folder / name, self.folder / inside)
        return True

    def _remove_damaged(self) -> None:
        """Remove the files in each folder of a complete result that has a missing or damaged file, because a stage
        keeps existing files."""
        recorded, here = (read_json(self.folder / DONE) or {}).get("files", {}), _sizes(self.folder)
        damaged = {Path(name).parent for name, size in recorded.items() if here.get(name) != size}
        for name in here:
            if Path(name).parent in damaged:
                (self.folder / name).unlink()
        (self.folder / DONE).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise RunError if the result does not exist."""
        if self.record is not None:
            return
        others = filter(None, map(self._difference, sorted(self.run_folder.glob(f"stages/{self.name}-*/{DONE}"))))
        there = "".join(f"; {other}" for other in list(others)[:3])
        raise RunError(f"{self.run_folder} has no {self.name} of these settings{there}; run {self.command} first")

    def _difference(self, done: Path) -> str:
        """The settings in which another result of this stage differs, in a few words."""
        found = (read_json(done) or {}).get("settings", {})
        there, here = flatten(found), flatten(json.loads(json.dumps({**self.settings, **self.shown})))
        keys = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
        words = [f"{key} {there.get(key)!r:.40} (now {here.get(key)!r:.40})" for key in keys[:2]]
        return f"{done.parent.name} has {', '.join(words)}" if words else ""


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10]


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file that later stages need: all but logs, notes, states and texts, which trainings do not need."""
    notes = (DONE, "recipe.json")
    found = (file for file in folder.rglob("*") if file.suffix in (".json", ".npy", ".npz", ".safetensors"))
    found = (file for file in found if file.name not in notes)
    return {str(file.relative_to(folder)): file.stat().st_size for file in found}


def link(name: Path, target: Path) -> None:
    """Let a readable path lead to a folder of the same run. Where there are no symbolic links, as on exFAT or in Google
    Drive, it is a file with the text of the link, as in Git."""
    new, text = name.with_name(f".{name.name}.{os.getpid()}"), str(target.relative_to(name.parent))
    new.unlink(missing_ok=True)
    try:
        new.symlink_to(text)
    except OSError as error:
        _warn_without_links(name.parent, str(error.strerror or error))
        new.write_text(text, encoding="utf-8")
    new.replace(name)


@cache
def _warn_without_links(run: Path, reason: str) -> None:
    logger.warning("%s: no symbolic links here (%s); recipes and commands follow small files instead", run, reason)


def follow(path: Path) -> Path:
    """The path in the folder of a result for one that begins with a readable path; other paths are unchanged."""
    for name in (path, *path.parents):
        if name.name in LINKS and (name.is_symlink() or name.is_file()):
            text = name.readlink() if name.is_symlink() else name.read_text(encoding="utf-8")
            return name.parent / text / path.relative_to(name)
    return path
