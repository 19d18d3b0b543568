"""What prepared text was made from, so that a changed file or setting is noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model.tokenizer import Tokenizer
from training.errors import MissingTextError, RunError
from training.recipe import Recipe, SourceConfig
from training.runtime.files import read_json, write_json
from training.sources.files import files
from training.sources.tables import log_once

_NAMES = {"config": "tokenizer", "settings": "corpus", "sources": "corpus.sources", "finetune": "finetune"}
_NAMES |= {"tokenizer": "the vocabulary", "files": "the text", "format": "the program's version"}
"""How messages call the parts of a record."""


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """SHA-256 of a tokenizer: equal ones tokenize equally."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def source_settings(sources: Iterable[SourceConfig]) -> list[dict[str, Any]]:
    """The settings of sources that the prepared text depends on."""
    return [source.model_dump(mode="json", exclude={"note"} | _without_effect(source)) for source in sources]


def _without_effect(source: SourceConfig) -> set[str]:
    """Keys that earlier versions did not have, so that text that they prepared is not prepared again."""
    return set() if source.separator else {"separator"}


def file_hashes(
    sources: Iterable[SourceConfig], root: Path, cache: Path, record: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """SHA-256 of each file of some sources, by its path from the root. Data sets of the hub are not included.

    Args:
        cache: JSON file of known hashes; a file of the same size and modification time is not hashed again.
        record: of what was made from the sources earlier. Where a source's files are not here, its hashes count.

    Raises:
        MissingTextError: files are not here, and there is no record.
    """
    known: dict[str, list[Any]] = read_json(cache) or {}
    found: dict[str, list[Any]] = {}
    recorded: dict[str, str] = {}
    for source in sources:
        try:
            here = files(source, root)
        except MissingTextError as error:
            if record is None:
                raise
            log_once(f"{error}; what was prepared from it is used")
            here, recorded = [], record["files"]
        for file in here:
            name, stat = os.path.relpath(file, root), file.stat()
            unchanged = known.get(name, [])[:2] == [stat.st_size, stat.st_mtime_ns]
            found[name] = known[name] if unchanged else [stat.st_size, stat.st_mtime_ns, _sha256(file)]
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_json(cache, known | found)
    return recorded | {name: entry[2] for name, entry in found.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two records of what a vocabulary or a corpus was made from, in the keys of a recipe."""
    found = []
    for part, name in _NAMES.items():
        old, new = before.get(part), now.get(part)
        if isinstance(old, dict) and isinstance(new, dict) and part != "files":
            for key, value in new.items():
                if old.get(key) != value:
                    values = " has changed" if isinstance(value, list) else f" was {old.get(key)}, is {value}"
                    found.append(f"{name}.{key}{values}")
        elif old != new:
            found.append(f"{name} has changed")
    return found


def check_unused(recipe: Recipe, changed: Iterable[str]) -> None:
    """Raise RunError if a checkpoint of this run's pretraining needs the vocabulary and the corpus as they are."""
    stage = recipe.folder / "pretrain"
    if any(stage.glob("*.pt")):
        raise RunError(
            f"the checkpoints in {stage} need the vocabulary and the corpus that they began with, but "
            f"{', '.join(changed)}: restore that, give this run another name, or delete {stage}"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
