"""One shard on disk: a folder of arrays that appears whole or not at all.

000000/
    tokens.npy         (tokens,) uint16, or uint32 for a vocabulary over 65,536
    columns.npz        arrays of the documents, see below
    texts.jsonl.gz     the text columns of each document and its place, a line each; labelled text only

    columns.npz has
    sentences          (sentences + 1,) int32: where each sentence starts, in tokens of the shard
    documents          (documents + 1,) int32: where each document starts, in sentences of the shard
    shard              `Shard` in JSON, for a `prepare` that goes on

    and of labelled text
    labels             (documents,) int16: index of the label, -1 without one; or, of several labels or numbers,
                       (documents, outputs) float32
    domains            (documents,) UTF-8 bytes: the domain (`SourceConfig.by`), empty without one
    texts, groups      (documents,) uint64: hashes of the text, and of the group, which stays in one part
    changed            (documents,) bool: another form of the document before it, see `finetune.augment_fraction`

In labelled text, a sentence is a text column, so a review's title and body are two sentences of one document.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tokenizers
from numpy.typing import NDArray

from model.tokenizer import Tokenizer
from training.corpus.encode import ShardEncoder, TextCounts, label_column
from training.sources.detokenize import capitals, contractions, typographic
from training.sources.documents import Document
from training.sources.labels import Target
from training.sources.split import hashes

TOKENS, COLUMNS, TEXTS = "tokens.npy", "columns.npz", "texts.jsonl.gz"
"""Files of a shard."""

SYNTHETIC = "synthetic"
"""`Shard.use` of the texts of `training.finetune.synthetic`."""


@dataclass(frozen=True, slots=True)
class ShardInput:
    """The documents of one shard, which a worker process encodes."""

    number: int
    """Number of the shard, from 0."""
    use: str
    """See `Shard`."""
    source: str
    documents: list[Document]
    labels: list[Target] | None
    """Target of each document, -1 without one; None for pretraining text."""
    read: str
    """How documents are read. Pretraining text: `lines` (each line is a sentence) or `paragraphs`. Labelled text:
    `text`, `pair` or `both`."""
    bytes_read: int = 0
    """Bytes of all files up to here, for the progress bar."""
    sentence_tokens: int = 0
    """Tokens above which a sentence of pretraining text is cut."""
    augment_fraction: float = 0.0
    """Share of the documents that are stored in another form, too."""

    @property
    def crc32(self) -> int:
        """Checksum of the texts, their columns, labels, groups and domains."""
        columns = [(each.group, each.domain) for each in self.documents if each.group or each.domain]
        checksum = zlib.crc32(repr((self.read, self.labels, *columns)).encode())
        for document in self.documents:
            for field in document.fields:
                checksum = zlib.crc32(field.encode() + b"\0", checksum)
            checksum = zlib.crc32(b"\1", checksum)
        return checksum


@dataclass(frozen=True, slots=True)
class Shard(TextCounts):
    """A shard as it is recorded."""

    name: str
    use: str
    """Pretraining text: `train` or `heldout`. Labelled text: the list of the recipe that names the source, see
    `training.corpus.parts`, or `SYNTHETIC`."""
    source: str
    read: str
    text_crc32: int
    """Checksum of the text, which tells whether the shard of an interrupted run is still valid."""


def make_in_worker(tokenizer: str, store: Path, shard_input: ShardInput) -> Shard:
    """`make_shard` in a worker process.

    Args:
        tokenizer: see `Tokenizer.to_json`.
    """
    return make_shard(_worker_encoder(tokenizer), store, shard_input)


@lru_cache(maxsize=1)
def _worker_encoder(tokenizer: str) -> ShardEncoder:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    return ShardEncoder(Tokenizer(tokenizers.Tokenizer.from_str(tokenizer)))


def make_shard(encoder: ShardEncoder, store: Path, shard_input: ShardInput) -> Shard:
    """Encode a shard into `store / number`, unless an interrupted run has made it from the same text."""
    folder, text_crc32 = store / f"{shard_input.number:06d}", shard_input.crc32
    if (made := _made(folder)) and made.text_crc32 == text_crc32:
        return made
    documents = shard_input.documents
    columns: dict[str, NDArray[Any]] = {}
    if shard_input.labels is None:
        texts = [document.text for document in documents]
        encoded = encoder.encode_text(texts, shard_input.sentence_tokens, lines=shard_input.read == "lines")
    else:
        rows = zip(documents, shard_input.labels, strict=True)
        forms = [form for row in rows for form in _forms(*row, shard_input.augment_fraction)]
        documents, labels, changed = map(list, zip(*forms, strict=True))
        encoded, columns = encoder.encode_labelled(documents), _columns(documents, labels, np.array(changed))
    shard = Shard(
        name=folder.name,
        use=shard_input.use,
        source=shard_input.source,
        read=shard_input.read,
        text_crc32=text_crc32,
        **asdict(encoded.counts),
    )
    unfinished = folder.with_suffix(".tmp")
    for leftover in (folder, unfinished):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    np.save(unfinished / TOKENS, encoded.ids)
    starts = {"sentences": encoded.sentence_starts, "documents": encoded.document_starts}
    columns |= {name: column.astype(np.int32) for name, column in starts.items()}
    np.savez(unfinished / COLUMNS, allow_pickle=False, shard=np.array(json.dumps(asdict(shard))), **columns)
    if shard_input.labels is not None:
        lines = (json.dumps([each.fields, each.place], ensure_ascii=False) + "\n" for each in documents)
        text = "".join(lines).encode(errors="surrogatepass")
        (unfinished / TEXTS).write_bytes(gzip.compress(text, compresslevel=4, mtime=0))
    unfinished.replace(folder)
    return shard


def _made(folder: Path) -> Shard | None:
    """The shard that an interrupted run has made; None if there is none, or its files cannot be read."""
    try:
        tokens = len(np.load(folder / TOKENS, mmap_mode="r"))
        with (folder / COLUMNS).open("rb") as file:  # NumPy leaves the file of broken arrays open
            shard = Shard(**json.loads(str(np.load(file)["shard"])))
    except (OSError, EOFError, ValueError, BadZipFile):
        return None
    return shard if shard.tokens == tokens else None


def _forms(document: Document, label: Target, fraction: float) -> Iterator[tuple[Document, Target, bool]]:
    """A document and its label, and whether it is changed. About `fraction` of the documents, always the same ones,
    come again with other contractions, capitals and marks."""
    yield document, label, False
    rng = np.random.default_rng((hashes(document)[0], 2)) if fraction else None
    if rng is None or rng.random() >= fraction:
        return
    fields = document.fields
    if rng.random() < 0.5:
        fields = tuple(contractions(field, rng) for field in fields)
    if rng.random() < 0.5:
        fields = tuple(capitals(field, rng) for field in fields)
    if (changed := tuple(map(typographic, fields))) != document.fields:
        yield replace(document, fields=changed), label, True


def _columns(
    documents: Sequence[Document], labels: Sequence[Target], changed: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """The columns of labelled text."""
    found = np.array([hashes(each) for each in documents], np.uint64)
    found[1:][changed[1:]] = found[:-1][changed[1:]]  # those of the first form, so that both are in one part
    domains = np.array([(each.domain or "").encode() for each in documents])
    columns = {"labels": label_column(labels), "domains": domains, "changed": changed}
    return columns | {"texts": found[:, 0], "groups": found[:, 1]}
