"""Reads a folder of prepared text, a window of shards at a time.

Memory holds the offsets of one window and maps its tokens from disk, so it does not grow with the corpus.
"""

from __future__ import annotations

import bisect
import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.files import system_remedy
from training.corpus.shards import COLUMNS, TEXTS, TOKENS, Shard
from training.errors import CorpusError, MissingTextError
from training.runtime.files import DONE, read_json
from training.sources.documents import Document

FORMAT = 6
"""Version of the format. Increase it when the files or the split of text change, so that text is prepared again."""

WINDOW_SHARDS = 32
"""Number of shards across which examples are shuffled: about 256 MB of text."""

Offsets = NDArray[np.int64]
Made = Mapping[str, Any]
"""What `training.corpus.prepare` records of a folder."""


class TextWindow:
    """Some shards as one text. Implements `training.examples.pairs.Text`."""

    def __init__(self, text: PreparedText, numbers: Sequence[int]) -> None:
        self.shards = [text.shards[i] for i in numbers]
        self.text, self._numbers = text, numbers
        self._first_tokens = [0, *itertools.accumulate(shard.tokens for shard in self.shards)]
        first_sentences = [0, *itertools.accumulate(shard.sentences for shard in self.shards)]
        self.sentence_starts = self._joined("sentences", self._first_tokens)
        """(sentences + 1,) first token of each sentence, and the end of the last."""
        self.document_starts = self._joined("documents", first_sentences)
        """(documents + 1,) first sentence of each document, and the end of the last."""
        self._tokens = [text.load(shard, "tokens") for shard in self.shards]

    def tokens(self, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """Ids of the tokens `first <= i < last`, which are in one document: (last - first,) uint16 or uint32."""
        shard = bisect.bisect_right(self._first_tokens, first, hi=len(self.shards)) - 1
        offset = self._first_tokens[shard]
        return self._tokens[shard][first - offset : last - offset]

    def column(self, name: str) -> NDArray[Any]:
        """A column of all documents of the window; see `PreparedText.column`."""
        return self.text.column(name, self._numbers)

    def _joined(self, name: str, offsets: Sequence[int]) -> Offsets:
        """The starts of all shards as one array, counted from the beginning of the window."""
        parts = [np.zeros(1, np.int64)]
        for shard, offset in zip(self.shards, offsets, strict=False):
            parts.append(self.text.load(shard, name)[1:].astype(np.int64) + offset)
        return np.concatenate(parts)


class PreparedText:
    """A folder that `prepare` wrote."""

    def __init__(
        self, folder: Path, made: Made | None = None, *, use: str = "", source: str = "", places: Sequence[Path] = ()
    ) -> None:
        """Open a folder whose files its stage has checked.

        Args:
            made: the record of the folder; read from it by default.
            use: read only shards of this use, see `Shard`.
            source: read only shards of this source.
            places: folders with further columns of all documents, or with others in place of the folder's own, or
                with further shards.

        Raises:
            CorpusError: the folder is not prepared.
        """
        made = made or read_json(folder / DONE)
        if made is None:
            raise CorpusError(f"{folder}: not prepared, or not completely; run prepare")
        self.folder, self._places = folder, (*places, folder)
        shards = [Shard(**values) for values in made["shards"]]
        for place in places:
            added = (read_json(place / DONE) or {}).get("shards", ())
            shards += [Shard(**{**values, "name": str(place.absolute() / values["name"])}) for values in added]
        self.shards = [each for each in shards if use in ("", each.use) and source in ("", each.source)]
        self.first_documents = [0, *itertools.accumulate(shard.documents for shard in self.shards)]
        """(shards + 1,) first document of each shard, and the end of the last."""
        self.documents = self.first_documents[-1]
        self.tokens = sum(shard.tokens for shard in self.shards)
        self.tokenizer_hash: str = made["tokenizer_hash"]
        self.vocab_size: int = made["vocab_size"]
        self.unigram_entropy: float = made.get("unigram_entropy", 0.0)
        """Entropy in nats of the distribution of single tokens of the text to pretrain on: the loss of a model that
        knows only their frequencies."""
        self.labels: list[str] = made.get("labels", [])
        """Labels of labelled text, in the order of their numbers."""

    def window(self, numbers: Sequence[int] | None = None) -> TextWindow:
        """The shards with these numbers as one text; the first `WINDOW_SHARDS` if None."""
        return TextWindow(self, range(len(self.shards))[:WINDOW_SHARDS] if numbers is None else numbers)

    def windows(self, seed: int, pass_number: int) -> Iterator[TextWindow]:
        """The windows of one pass: all shards, shuffled. A window's files are read while it is used, so a disk reads
        long runs of some files, and examples are shuffled across all of a window."""
        order = np.random.default_rng((seed, pass_number)).permutation(len(self.shards)).tolist()
        return (self.window(order[at : at + WINDOW_SHARDS]) for at in range(0, len(order), WINDOW_SHARDS))

    @property
    def checksum(self) -> str:
        """Checksum of the text, which depends on its order."""
        return f"{zlib.crc32(repr([shard.text_crc32 for shard in self.shards]).encode()):08x}"

    def column(self, name: str, numbers: Sequence[int] | None = None) -> NDArray[Any]:
        """A column: (documents, ...) of all documents, or of those of some shards. It is in the shards, such as
        `labels`, or a file with all documents, such as `parts`."""
        numbers = range(len(self.shards)) if numbers is None else numbers
        files = [place / f"{name}.npy" for place in self._places]
        if file := next(filter(Path.is_file, files), None):
            whole = np.load(file, mmap_mode="r")
            return np.concatenate([whole[self.first_documents[i] : self.first_documents[i + 1]] for i in numbers])
        return np.concatenate([self.load(self.shards[i], name) for i in numbers])

    def load(self, shard: Shard, name: str) -> NDArray[Any]:
        """A column of a shard, or its `tokens`, mapped from disk."""
        file = self.folder / shard.name / (TOKENS if name == "tokens" else COLUMNS)
        try:
            if name == "tokens":
                return np.load(file, mmap_mode="r").view(
                    np.ndarray
                )  # slices of a `np.memmap` take several times as long
            with np.load(file) as columns:
                return columns[name]
        except OSError as error:  # an error of `mmap` names no file
            raise CorpusError(f"{file}: cannot be read: {error.strerror or error}{system_remedy(error)}") from error

    def read(self, rows: Sequence[int]) -> list[Document]:
        """The text columns and places of some documents, by their numbers.

        Raises:
            MissingTextError: only token ids are here.
        """
        found: dict[int, Document] = {}
        for shard, (begin, end) in zip(self.shards, itertools.pairwise(self.first_documents), strict=True):
            chosen = {row - begin for row in rows if begin <= row < end}
            if not chosen:
                continue
            if not (file := self.folder / shard.name / TEXTS).is_file():
                raise MissingTextError(f"{file} is missing")
            with gzip.open(file, "rt", encoding="utf-8", errors="surrogatepass") as lines:
                found |= {begin + row: _document(line) for row, line in enumerate(lines) if row in chosen}
        return [found[row] for row in rows]

    def token_counts(self) -> NDArray[np.int64]:
        """(vocab_size,) number of occurrences of each token; reads the whole text."""
        counts = np.zeros(self.vocab_size, np.int64)
        for shard in self.shards:
            counts += np.bincount(self.load(shard, "tokens"), minlength=self.vocab_size)
        return counts


def _document(line: str) -> Document:
    fields, place = json.loads(line)
    return Document(tuple(fields), place=place)
