"""Which texts are held out, in pretraining and fine-tuning alike: decided by a hash, the same in every run.

1. Groups, not texts, are held out: a group is what the recipe's `group` says, or a text by itself.
2. A share of the groups is held out, those of the lowest hashes; of a source at least one, and never all.
3. A text that is held out somewhere is trained on nowhere, whatever its case, white space and punctuation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

from training.sources.documents import Document
from training.sources.plain_text import without_breaks

_RANGE = 2**64
_ASCII_MARKS = bytes(code for code in range(128) if not chr(code).isalnum())
_TYPOGRAPHIC_MARKS = "‘’“”«»–—…\xa0"


def text_hash(text: str) -> int:
    """64 bits, equal for texts that differ only in case, white space, punctuation and `<br />`, and so for the
    spellings of one text. Punctuation counts where a text has nothing else."""
    text = without_breaks(text).casefold()
    encoded = text.encode("utf-8", "surrogatepass")
    if not text.isascii():
        for mark in _TYPOGRAPHIC_MARKS:
            text = text.replace(mark, "")
    plain = text.encode("utf-8", "surrogatepass").translate(None, _ASCII_MARKS)
    return int.from_bytes(hashlib.blake2b(plain or encoded, digest_size=8).digest())


def group_hash(document: Document) -> int:
    """Equal for documents that must stay in one part."""
    return text_hash(document.group or document.text)


def hash_share(key: int) -> float:
    """A hash as a number in [0, 1)."""
    return key / _RANGE


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The groups that are held out, by their hashes. `key in held_out` tells."""

    below: int = 0
    """All hashes below this, but"""
    trained: frozenset[int] = frozenset()
    """these, and also"""
    besides: frozenset[int] = frozenset()
    """these."""

    def __contains__(self, key: int) -> bool:
        return key in self.besides or (key < self.below and key not in self.trained)

    def __or__(self, other: HeldOut) -> HeldOut:
        """What either holds out, of the same fraction: the small sources of both have their groups."""
        besides = self.besides | other.besides
        trained = (self.trained | other.trained) - besides
        return HeldOut(max(self.below, other.below), trained, besides)


def hold_out(keys: Iterable[int], fraction: float) -> HeldOut:
    """Choose a share of the groups of one source, whose hashes these are.

    One group at least is held out, and one is trained on; a source of a single group is trained on. Reads only
    as many hashes as it takes to know that.
    """
    below = int(fraction * _RANGE)
    if below in (0, _RANGE):
        return HeldOut(below)
    lowest, highest = _RANGE, -1
    for key in keys:
        lowest, highest = min(lowest, key), max(highest, key)
        if lowest < below <= highest:
            return HeldOut(below)
    if 0 <= highest < below:
        return HeldOut(below, trained=frozenset({highest}))
    if lowest < highest:
        return HeldOut(below, besides=frozenset({lowest}))
    return HeldOut(below)


def is_contaminated(document: Document, heldout_hashes: Set[int]) -> bool:
    """Whether a text to be trained on is held out as well, in whatever spelling."""
    return text_hash(document.text) in heldout_hashes
