"""One shard on disk: a folder of arrays that appears whole or not at all.

000000/
    tokens.npy         (tokens,) uint16, or uint32 for a vocabulary over 65,536
    sentences.npy      (sentences + 1,) int32: where each sentence starts, in tokens of the shard
    documents.npy      (documents + 1,) int32: where each document starts, in sentences of the shard
    labels.npy         (documents,) int16: index of the label, -1 without one; or, of several labels or numbers,
                       (documents, outputs) float32; labelled text only
    domains.npy        (documents,) UTF-8 bytes: the domain (`SourceConfig.by`), empty without one; labelled text only
    groups.npy         (documents,) uint64: hash of the group, which stays in one part; labelled text only
    target_probs.npy   (documents, labels) float32: a teacher's probabilities; written by the bag
                       of words (`finetune.bag_teacher`); the stage `soft_labels` has those of `distill`
    shard.json         counts and checksums

In labelled text, a sentence is a text column, so a review's title and body are two sentences of one document.
"""

from __future__ import annotations

import os
import shutil
import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import tokenizers

from model.tokenizer import Tokenizer
from training.corpus.encode import EncodedShard, ShardEncoder
from training.errors import CorpusError
from training.runtime.files import read_json, write_json
from training.sources.documents import Document
from training.sources.labels import Target
from training.sources.split import hashes


@dataclass(frozen=True, slots=True)
class ShardInput:
    """The documents of one shard, which an engine gives to a worker."""

    part: str
    """Folder of the shard below the corpus: `train`, `heldout/<source>`, `dev/<source>` or `test/<source>`."""
    number: int
    """Number of the shard in its part, from 0."""
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
class Shard:
    """Contents of `shard.json`."""

    name: str
    source: str
    read: str
    documents: int
    sentences: int
    tokens: int
    unknown_sentences: int
    """Sentences that are mostly [UNK]: dropped from pretraining text, kept in labelled text."""
    cut_sentences: int
    """Sentences cut because they are too long."""
    text_crc32: int
    """Checksum of the text, which tells whether the shard of an interrupted run is still valid."""
    sizes: dict[str, int]
    """Bytes of each file."""
    crc32: dict[str, int]
    """Checksum of each file."""
    letters: int = 0  # the default is for shards of earlier versions
    lost_letters: int = 0
    long_word_letters: int = 0
    """Letters of words that become [UNK] because they are too long."""

    def check_sizes(self, folder: Path) -> None:
        """Raise CorpusError if a file in `folder / name` is missing, or its length differs from the recorded one."""
        for name, size in self.sizes.items():
            file = folder / self.name / name
            if not file.is_file() or file.stat().st_size != size:
                raise CorpusError(f"{file}: missing, or not {size} bytes long as written; run prepare again")

    def is_intact(self, folder: Path) -> bool:
        """Whether all files in `folder / name` have the contents that were written."""
        files = ((folder / self.name / name, checksum) for name, checksum in self.crc32.items())
        return all(file.is_file() and zlib.crc32(file.read_bytes()) == checksum for file, checksum in files)


def make_in_worker(tokenizer: str, corpus: Path, shard_input: ShardInput) -> Shard:
    """`make_shard` in a worker process of an engine.

    Args:
        tokenizer: see `Tokenizer.to_json`.
    """
    return make_shard(_worker_encoder(tokenizer), corpus, shard_input)


@lru_cache(maxsize=1)
def _worker_encoder(tokenizer: str) -> ShardEncoder:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    return ShardEncoder(Tokenizer(tokenizers.Tokenizer.from_str(tokenizer)))


def make_shard(encoder: ShardEncoder, corpus: Path, shard_input: ShardInput) -> Shard:
    """Encode a shard into `corpus / part / number`, unless an earlier run has completed it from the same text."""
    folder = corpus / shard_input.part
    values = read_json(folder / f"{shard_input.number:06d}" / "shard.json")
    if values and values["text_crc32"] == shard_input.crc32 and (shard := Shard(**values)).is_intact(folder):
        return shard
    if shard_input.labels is not None:
        return _write(encoder.encode_labelled(shard_input.documents, shard_input.labels), corpus, shard_input)
    texts = [document.text for document in shard_input.documents]
    encoded = encoder.encode_text(texts, shard_input.sentence_tokens, lines=shard_input.read == "lines")
    return _write(encoded, corpus, shard_input)


def _write(encoded: EncodedShard, corpus: Path, shard_input: ShardInput) -> Shard:
    final = corpus / shard_input.part / f"{shard_input.number:06d}"
    unfinished = final.with_suffix(".tmp")
    for leftover in (final, unfinished):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    np.save(unfinished / "tokens.npy", encoded.tokens)
    np.save(unfinished / "sentences.npy", encoded.sentence_starts)
    np.save(unfinished / "documents.npy", encoded.document_starts)
    if encoded.labels is not None:
        np.save(unfinished / "labels.npy", encoded.labels)
        documents = shard_input.documents
        np.save(unfinished / "domains.npy", np.array([(each.domain or "").encode() for each in documents]))
        np.save(unfinished / "groups.npy", np.array([hashes(each)[1] for each in documents], np.uint64))
    contents = {file.name: file.read_bytes() for file in sorted(unfinished.iterdir())}
    shard = Shard(
        name=final.name,
        source=shard_input.source,
        read=shard_input.read,
        documents=len(encoded.document_starts) - 1,
        sentences=len(encoded.sentence_starts) - 1,
        tokens=len(encoded.tokens),
        unknown_sentences=encoded.unknown_sentences,
        cut_sentences=encoded.cut_sentences,
        text_crc32=shard_input.crc32,
        sizes={name: len(content) for name, content in contents.items()},
        crc32={name: zlib.crc32(content) for name, content in contents.items()},
        letters=encoded.letters,
        lost_letters=encoded.lost_letters,
        long_word_letters=encoded.long_word_letters,
    )
    write_json(unfinished / "shard.json", asdict(shard))
    unfinished.replace(final)
    return shard
