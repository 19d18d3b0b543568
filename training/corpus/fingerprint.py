"""What prepared text was made from, so that a changed file or setting is noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.tokenizer import Tokenizer
from training.recipe import SourceConfig
from training.runtime.files import read_json, write_json
from training.sources.files import files


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """SHA-256 of a tokenizer: equal ones tokenize equally."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def source_settings(sources: Iterable[SourceConfig]) -> list[dict[str, Any]]:
    """The settings of sources that the prepared text depends on."""
    return [source.model_dump(mode="json", exclude={"note"}) for source in sources]


def file_hashes(sources: Iterable[SourceConfig], root: Path, cache: Path) -> dict[str, str]:
    """SHA-256 of each file of some sources, by its path from the root. Data sets of the hub are not included.

    Args:
        cache: JSON file of known hashes; a file of the same size and modification time is not hashed again.
    """
    known: dict[str, list[Any]] = read_json(cache) or {}
    found: dict[str, list[Any]] = {}
    for source in sources:
        for file in files(source, root):
            name, stat = os.path.relpath(file, root), file.stat()
            unchanged = known.get(name, [])[:2] == [stat.st_size, stat.st_mtime_ns]
            found[name] = known[name] if unchanged else [stat.st_size, stat.st_mtime_ns, _sha256(file)]
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_json(cache, known | found)
    return {name: entry[2] for name, entry in found.items()}


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
