"""Which document goes where: sources to pieces of text, one for each shard, the same in every run."""

from __future__ import annotations

import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from training.recipe import Recipe, SourceConfig, source_name
from training.sources.documents import Document, documents
from training.sources.split import HeldOut, group_hash, hold_out, is_contaminated, text_hash

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
    text that another is a spelling of, nor is a group; a text of two groups may be left out."""
    config = recipe.corpus
    held_out = _hold_out(recipe)
    heldout_hashes: set[int] = set()
    for source in config.heldout:
        for document in documents(source, recipe.data, meter.add, recipe.hub_cache):
            heldout_hashes |= {group_hash(document), text_hash(document.text)}
            yield f"heldout/{source_name(source)}", source, document.text
    if held_out.below:
        every = itertools.chain.from_iterable(_read(recipe, source) for source in config.sources)
        heldout_hashes |= {text_hash(document.text) for document in every if group_hash(document) in held_out}
    for source in config.sources:
        left_out = 0
        for document in documents(source, recipe.data, meter.add, recipe.hub_cache):
            if group_hash(document) in held_out:
                yield f"heldout/{source_name(source)}", source, document.text
            elif not (group_hash(document) in heldout_hashes or is_contaminated(document, heldout_hashes)):
                yield "train", source, document.text
            else:
                left_out += 1
        if left_out:
            logger.info("%s: %d documents are held out as well, so left out", source_name(source), left_out)


def _read(recipe: Recipe, source: SourceConfig) -> Iterator[Document]:
    return documents(source, recipe.data, hub_cache=recipe.hub_cache)


def _hold_out(recipe: Recipe) -> HeldOut:
    """No group where `corpus.heldout` names sources; else a share, of each source one at least."""
    fraction = 0.0 if recipe.corpus.heldout else recipe.corpus.heldout_fraction
    held_out = HeldOut()
    for source in recipe.corpus.sources if fraction else ():
        held_out |= hold_out(map(group_hash, _read(recipe, source)), fraction)
    return held_out
