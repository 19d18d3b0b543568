"""Reads a prepared folder, a window of shards at a time.

Memory holds the offsets of one window and maps its tokens from disk, so it does not grow with the corpus.
"""

from __future__ import annotations

import bisect
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.files import system_remedy
from training.corpus.shards import Shard
from training.errors import CorpusError
from training.runtime.files import read_json

FORMAT = 5
"""Version of the format. Raised when the files or the way of splitting text change, so that text is prepared again."""

WINDOW_SHARDS = 32
"""Number of shards across which examples are shuffled: about 256 MB of text."""

Offsets = NDArray[np.int64]


class TextWindow:
    """Some shards as one text. Implements `training.examples.pairs.Text`."""

    def __init__(self, folder: Path, shards: Sequence[Shard], columns: Path | None = None) -> None:
        self.shards = list(shards)
        self._folder = folder
        self._columns = columns
        self._first_tokens = [0, *itertools.accumulate(shard.tokens for shard in shards)]
        first_sentences = [0, *itertools.accumulate(shard.sentences for shard in shards)]
        self.sentence_starts = self._joined("sentences.npy", self._first_tokens)
        """(sentences + 1,) first token of each sentence, and the end of the last."""
        self.document_starts = self._joined("documents.npy", first_sentences)
        """(documents + 1,) first sentence of each document, and the end of the last."""
        self._tokens = [self._load(shard, "tokens.npy") for shard in shards]

    def tokens(self, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """Ids of the tokens `first <= i < last`, which are in one document: (last - first,) uint16 or uint32."""
        shard = bisect.bisect_right(self._first_tokens, first, hi=len(self.shards)) - 1
        offset = self._first_tokens[shard]
        return self._tokens[shard][first - offset : last - offset]

    def column(self, name: str) -> NDArray[Any] | None:
        """A column of all documents, such as `labels`: (documents, ...); None unless every shard has it."""
        return _column(self._folder, self._columns, self.shards, name)

    def _joined(self, name: str, offsets: Sequence[int]) -> Offsets:
        """The starts of all shards as one array, counted from the beginning of the window."""
        parts = [np.zeros(1, np.int64)]
        for shard, offset in zip(self.shards, offsets, strict=False):
            parts.append(self._load(shard, name)[1:].astype(np.int64) + offset)
        return np.concatenate(parts)

    def _load(self, shard: Shard, name: str) -> NDArray[Any]:
        file = self._folder / shard.name / name
        try:
            array = np.load(file, mmap_mode="r")
        except OSError as error:  # that of mapping names no file
            raise CorpusError(f"{file}: cannot be read: {error.strerror or error}{system_remedy(error)}") from error
        return array.view(np.ndarray)  # slices of a `np.memmap` take several times as long


class PreparedText:
    """One prepared folder: `corpus/train`, `corpus/heldout/<source>`, `labelled/train` or `labelled/dev/<source>`."""

    def __init__(self, folder: Path, manifest: dict[str, Any], columns: Path | None = None) -> None:
        self.folder = folder
        self._columns = columns
        self.shards = [Shard(**values) for values in manifest["shards"]]
        self.tokens: int = manifest["tokens"]
        self.documents: int = manifest["documents"]
        self.unigram_entropy: float = manifest["unigram_entropy"]
        """Entropy of the distribution of single tokens in nats: the loss of a model that knows only their
        frequencies."""
        self.tokenizer_hash: str = manifest["tokenizer_hash"]
        self.vocab_size: int = manifest["vocab_size"]
        for shard in self.shards:
            shard.check_sizes(folder)

    @classmethod
    def open(cls, folder: Path, columns: Path | None = None) -> PreparedText:
        """Open a prepared folder.

        Args:
            columns: a folder with further columns of the same shards.

        Raises:
            CorpusError: the folder is not prepared, or a file is missing or has another size.
        """
        manifest = read_json(folder / "manifest.json")
        if manifest is None:
            raise CorpusError(f"{folder}: not prepared, or not completely; run prepare")
        if manifest["format"] != FORMAT:
            raise CorpusError(f"{folder}: made by another version of this program; run prepare again")
        return cls(folder, manifest, columns)

    def window(self, numbers: Sequence[int] | None = None) -> TextWindow:
        """The shards with these numbers as one text; the first `WINDOW_SHARDS` if None."""
        chosen = self.shards[:WINDOW_SHARDS] if numbers is None else [self.shards[i] for i in numbers]
        return TextWindow(self.folder, chosen, self._columns)

    def windows(self, seed: int, epoch: int) -> Iterator[TextWindow]:
        """The windows of one pass: all shards, shuffled. A window's files are read while it is used, so a disk reads
        long runs of some files, and examples are shuffled across all of a window."""
        order = np.random.default_rng((seed, epoch)).permutation(len(self.shards)).tolist()
        return (self.window(order[at : at + WINDOW_SHARDS]) for at in range(0, len(order), WINDOW_SHARDS))

    @property
    def checksum(self) -> str:
        """Checksum of the text, which depends on its order."""
        return f"{zlib.crc32(repr([shard.text_crc32 for shard in self.shards]).encode()):08x}"

    def column(self, name: str) -> NDArray[Any] | None:
        """A column of all documents; None unless every shard has it."""
        return _column(self.folder, self._columns, self.shards, name)

    def token_counts(self) -> NDArray[np.int64]:
        """(vocab_size,) number of occurrences of each token; reads the whole text."""
        return count_tokens(self.folder, self.shards, self.vocab_size)


def _column(folder: Path, further: Path | None, shards: Sequence[Shard], name: str) -> NDArray[Any] | None:
    for place in filter(None, (further, folder)):
        files = [place / shard.name / f"{name}.npy" for shard in shards]
        if all(file.is_file() for file in files):
            return np.concatenate([np.load(file) for file in files])
    return None


def open_parts(folder: Path) -> dict[str, PreparedText]:
    """The prepared texts in the sub-folders, by the name of their source."""
    return {file.parent.name: PreparedText.open(file.parent) for file in sorted(folder.glob("*/manifest.json"))}


def count_tokens(folder: Path, shards: Sequence[Shard], vocab_size: int) -> NDArray[np.int64]:
    """(vocab_size,) number of occurrences of each token in some shards."""
    counts = np.zeros(vocab_size, np.int64)
    for shard in shards:
        counts += np.bincount(np.load(folder / shard.name / "tokens.npy"), minlength=vocab_size)
    return counts
