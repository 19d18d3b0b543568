"""Which document goes where: sources to pieces of text, one for each shard, the same in every run."""

from __future__ import annotations

import hashlib
import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training.recipe import CorpusConfig, Recipe, SourceConfig, source_name
from training.sources.documents import Document, documents

PIECE_CHARACTERS = 8_000_000
"""Text per shard; memory in use is a few times this per worker, whatever the size of the corpus."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one shard on its way to a worker."""

    part: str
    """`train` or `heldout/<source>`."""
    number: int
    """Counted from 0 in its part."""
    source: str
    lines: bool
    """Whether each line is a sentence."""
    texts: list[str]
    bytes_read: int
    """From all files up to here, for the progress bar."""

    @property
    def crc32(self) -> int:
        """Of the texts and where each ends."""
        checksum = 0
        for text in self.texts:
            checksum = zlib.crc32(text.encode() + b"\0", checksum)
        return checksum


@dataclass(slots=True)
class _Meter:
    bytes_read: int = 0

    def add(self, count: int) -> None:
        self.bytes_read += count


def pieces(recipe: Recipe) -> Iterator[Piece]:
    """The text of every shard of the recipe's corpus. A piece is of one part and one source.

    Raises:
        SourceError: text that cannot be read.
    """
    meter = _Meter()
    numbers: Counter[str] = Counter()
    for source, routed in itertools.groupby(_routed(recipe, meter), key=lambda item: item[1]):
        for part, texts in _cut((part, text) for part, _, text in routed):
            lines = source.lines == "sentence"
            yield Piece(part, numbers[part], source_name(source), lines, texts, meter.bytes_read)
            numbers[part] += 1


def _cut(routed: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """(part, text) to (part, texts) of about `PIECE_CHARACTERS`."""
    waiting: dict[str, list[str]] = {}
    sizes: Counter[str] = Counter()
    for part, text in routed:
        waiting.setdefault(part, []).append(text)
        sizes[part] += len(text)
        if sizes[part] >= PIECE_CHARACTERS:
            yield part, waiting.pop(part)
            sizes[part] = 0
    yield from waiting.items()


def _routed(recipe: Recipe, meter: _Meter) -> Iterator[tuple[str, SourceConfig, str]]:
    """(part, source, text) of each document. A text that occurs twice is never in both kinds of part, nor is a
    text that another is a part or a spelling of, nor is a group; a text of two groups may be left out."""
    config, root = recipe.corpus, recipe.data
    held_out = _HeldOut.of(config, root)
    judging: set[int] = set()
    for source in config.heldout:
        for document in documents(source, root, meter.add):
            judging |= {_group_hash(document), text_hash(document.text)}
            yield f"heldout/{source_name(source)}", source, document.text
    if held_out.below:
        every = (each for source in config.sources for each in documents(source, root))
        judging |= {text_hash(document.text) for document in every if _group_hash(document) in held_out}
    for source in config.sources:
        left_out = 0
        for document in documents(source, root, meter.add):
            group = _group_hash(document)
            if group in held_out:
                yield f"heldout/{source_name(source)}", source, document.text
            elif judging.isdisjoint({group, text_hash(document.text)}):
                yield "train", source, document.text
            else:
                left_out += 1
        if left_out:
            logger.info("%s: %d documents are held out as well, so left out", source_name(source), left_out)


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """The groups of `corpus.sources` that are not trained on, by their hashes."""

    below: int
    """Hashes below it"""
    besides: frozenset[int]
    but: frozenset[int]

    @classmethod
    def of(cls, config: CorpusConfig, root: Path) -> _HeldOut:
        """Nothing where `corpus.heldout` names sources; else a share, of each source one at least."""
        below = 0 if config.heldout else int(config.heldout_fraction * 2**64)
        ends = [_at_least_one(source, root, below) for source in config.sources] if below else []
        return cls(below, *(frozenset().union(*(pair[end] for pair in ends)) for end in (0, 1)))

    def __contains__(self, group: int) -> bool:
        return group in self.besides or (group < self.below and group not in self.but)


def _group_hash(document: Document) -> int:
    """Of what must stay together: its group, the text that it is a part or a spelling of, or its own."""
    return text_hash(document.group or document.text)


def text_hash(text: str) -> int:
    """64 bits that do not depend on the case of ASCII letters or on white space."""
    normalised = text.encode().lower().translate(None, b" \t\r\n")
    return int.from_bytes(hashlib.blake2b(normalised, digest_size=8).digest(), "big")


def _at_least_one(source: SourceConfig, root: Path, below: int) -> tuple[set[int], set[int]]:
    """Of a source so small that the limit does not part it: the lowest hash, to be held out, or the highest, to
    be trained on. A source that is one single text is trained on."""
    lowest, highest = 2**64, -1
    for document in documents(source, root):
        key = _group_hash(document)
        lowest, highest = min(lowest, key), max(highest, key)
        if lowest < below <= highest:
            break
    if highest < below < 2**64:
        return set(), {highest}
    return {lowest} if below <= lowest < highest else set(), set()
