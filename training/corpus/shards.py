"""One shard on disk: a folder of arrays that appears whole or not at all.

000000/
    tokens.npy        (tokens,) uint16, or uint32 for a vocabulary over 65,536
    sentences.npy     (sentences + 1,) int32: where each sentence starts, in tokens of the shard
    documents.npy     (documents + 1,) int32: where each document starts, in sentences of the shard
    shard.json        counts and checksums
"""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.corpus.pieces import Piece
from training.corpus.sentences import SentenceEncoder
from training.errors import CorpusError


@dataclass(frozen=True, slots=True)
class Shard:
    """What `shard.json` knows."""

    name: str
    source: str
    documents: int
    sentences: int
    tokens: int
    unknown_sentences: int
    """Dropped, because mostly [UNK]."""
    cut_sentences: int
    """Cut, because too long."""
    text_crc32: int
    """Of the text it was made from, to see whether the shard of an interrupted run is still the right one."""
    sizes: dict[str, int]
    """Bytes of each file."""
    crc32: dict[str, int]
    """Checksum of each file."""

    def check_sizes(self, folder: Path) -> None:
        """Raise CorpusError if a file in `folder / name` is missing or not as long as it was written."""
        for name, size in self.sizes.items():
            file = folder / self.name / name
            if not file.is_file() or file.stat().st_size != size:
                raise CorpusError(f"{file}: missing, or not of {size} bytes as written; run prepare again")

    def check_contents(self, folder: Path) -> None:
        """Raise CorpusError if a file in `folder / name` is not as it was written."""
        self.check_sizes(folder)
        for name, checksum in self.crc32.items():
            file = folder / self.name / name
            if zlib.crc32(file.read_bytes()) != checksum:
                raise CorpusError(f"{file}: damaged; delete the folder {file.parent} and run prepare again")


def make_shard(encoder: SentenceEncoder, corpus: Path, piece: Piece) -> Shard:
    """The shard of a piece in `corpus / part / number`: an earlier run's, or else made now."""
    return _finished(corpus, piece) or _write(encoder, corpus, piece)


def _write(encoder: SentenceEncoder, corpus: Path, piece: Piece) -> Shard:
    final = corpus / piece.part / _name(piece)
    unfinished = final.with_suffix(".tmp")
    for leftover in (final, unfinished):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    encoded = encoder.encode(piece.texts, lines=piece.lines)
    np.save(unfinished / "tokens.npy", encoded.tokens)
    np.save(unfinished / "sentences.npy", encoded.sentence_starts)
    np.save(unfinished / "documents.npy", encoded.document_starts)
    contents = {file.name: file.read_bytes() for file in sorted(unfinished.iterdir())}
    shard = Shard(
        name=final.name,
        source=piece.source,
        documents=len(encoded.document_starts) - 1,
        sentences=len(encoded.sentence_starts) - 1,
        tokens=len(encoded.tokens),
        unknown_sentences=encoded.unknown_sentences,
        cut_sentences=encoded.cut_sentences,
        text_crc32=piece.crc32,
        sizes={name: len(content) for name, content in contents.items()},
        crc32={name: zlib.crc32(content) for name, content in contents.items()},
    )
    write_json(unfinished / "shard.json", asdict(shard))
    unfinished.replace(final)
    return shard


def _name(piece: Piece) -> str:
    return f"{piece.number:06d}"


def _finished(corpus: Path, piece: Piece) -> Shard | None:
    """The shard of this very text, if an earlier run completed it and it is still whole."""
    folder = corpus / piece.part
    values = read_json(folder / _name(piece) / "shard.json")
    if values is None or values["text_crc32"] != piece.crc32:
        return None
    shard = Shard(**values)
    try:
        shard.check_contents(folder)
    except CorpusError:
        return None
    return shard


def read_json(file: Path) -> Any:
    """Contents of a JSON file; None if it is not there or not whole."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(file: Path, values: Any) -> None:
    """Write a JSON file that appears whole or not at all."""
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(file)
