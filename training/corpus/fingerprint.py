"""Hashes of a stage's inputs and settings, so that a changed file or setting gives another result."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from model.tokenizer import Tokenizer
from training.errors import MissingTextError, RunError
from training.recipe import SourceConfig
from training.runtime.files import read_json, write_json
from training.sources.files import files
from training.sources.tables import log_once

_NETWORK_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """SHA-256 of a tokenizer. Tokenizers with equal hashes tokenize in the same way."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def source_settings(sources: Iterable[SourceConfig], *without: str) -> list[dict[str, Any]]:
    """The settings of sources that their labelled text depends on, but not those `without`."""
    return [source.model_dump(mode="json", exclude={"note", "name", *without}) for source in sources]


def split_settings(sources: Iterable[SourceConfig]) -> list[dict[str, Any]]:
    """The settings of sources that their text and its split depend on."""
    return source_settings(sources, "read", "balance", "by", "separator")


def raw_text_settings(sources: Iterable[SourceConfig]) -> list[dict[str, Any]]:
    """The settings of sources that their text depends on."""
    return source_settings(sources, "read", "balance", "by", "separator", "group")


def file_hashes(sources: Iterable[SourceConfig], root: Path, cache: Path) -> dict[str, str]:
    """SHA-256 of each file of some sources, by its path from the root. Data sets of the hub are not included.

    If the files of a source are missing, the hashes that the cache has recorded are used, which is logged.

    Args:
        cache: JSON file of known hashes; a file of the same size and modification time is not hashed again.

    Raises:
        MissingTextError: files are missing, and no hash is recorded.
    """
    known = read_json(cache) or {}
    found: dict[str, str] = {}
    for source in filter(lambda source: source.path is not None, sources):
        recorded: dict[str, Any] = known.get(f"{source.path} {source.format}", {})
        try:
            here = {os.path.relpath(file, root): file for file in files(source, root)}
        except MissingTextError as error:
            if not recorded:
                raise
            log_once(f"{error}; what was prepared from it is used")
            here = {}
        if here or not recorded:  # a source that is on the hub, too, may have no files
            recorded = {name: _entry(file, recorded.get(name)) for name, file in here.items()}
            known[f"{source.path} {source.format}"] = recorded
        found |= {name: entry[2] for name, entry in recorded.items()}
    _write(cache, known)
    return found


def checkpoint_hash(folder: Path) -> str:
    """SHA-256 of a checkpoint directory's weights, configuration and tokenizer. Raises RunError if it is missing."""
    found = sorted({file for pattern in _NETWORK_FILES for file in folder.glob(pattern)})
    if not found:
        raise RunError(f"{folder} is missing, or is not a checkpoint directory")
    hashes = {file.name: _entry(file, None)[2] for file in found}
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _entry(file: Path, known: list[Any] | None) -> list[Any]:
    """Size, modification time, SHA-256 and path of a file."""
    stat, path = file.stat(), str(file.resolve())
    if known and [*known[:2], *known[3:]] == [stat.st_size, stat.st_mtime_ns, path]:
        return known
    return [stat.st_size, stat.st_mtime_ns, _sha256(path, stat.st_size, stat.st_mtime_ns), path]


@functools.cache
def _sha256(path: str, _size: int, _modified: int) -> str:
    """SHA-256 of a file. A process reads it again only if its size or modification time has changed."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _write(cache: Path, known: dict[str, Any]) -> None:
    if known != read_json(cache):
        cache.parent.mkdir(parents=True, exist_ok=True)
        own = cache.with_name(f"{uuid4().hex}-{cache.name}")  # ranks may write at the same time
        write_json(own, known)
        own.replace(cache)
