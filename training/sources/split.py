"""Which documents are trained on and which are held out: one hash split for pretraining text and labelled text.

The hash of a document's group, or of its normalised text, decides, so every run makes the same split and equal texts
are always in the same part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from training.sources.documents import Document
from training.sources.plain_text import without_breaks

_ASCII_MARKS = bytes(code for code in range(128) if not chr(code).isalnum())
_TYPOGRAPHIC_MARKS = "‘’“”«»–—…\xa0"


def text_hash(text: str) -> int:
    """64-bit hash of a text that ignores case, white space, punctuation and `<br />`: two texts with the same hash
    count as the same text. Of a text that has nothing else, punctuation counts.

    >>> text_hash("It isn’t “good”.") == text_hash("it is n't ``good''")
    True
    """
    text = without_breaks(text).casefold()
    whole = text.encode(errors="surrogatepass")
    if not text.isascii():
        for mark in _TYPOGRAPHIC_MARKS:
            text = text.replace(mark, "")
    letters = text.encode(errors="surrogatepass").translate(None, _ASCII_MARKS)
    return int.from_bytes(hashlib.blake2b(letters or whole, digest_size=8).digest(), "big")


def group_hash(document: Document) -> int:
    """64-bit hash of what must stay in one part: the document's group, or else its text."""
    return text_hash(document.group or document.text)


@dataclass(frozen=True, slots=True)
class HashSplit:
    """Holds out the groups whose hash is below a limit."""

    limit: int

    def holds_out(self, document: Document) -> bool:
        """Whether a document is held out."""
        return group_hash(document) < self.limit


def split_by_hash(documents: Iterable[Document], fraction: float) -> HashSplit:
    """The split that holds out about `fraction` of the groups of a source, at least one and never all. A source of one
    group is trained on. Reads documents only until both parts have one."""
    limit = int(fraction * 2**64)
    lowest: list[int] = []  # the two lowest hashes
    highest = -1
    for document in documents if limit else ():
        value = group_hash(document)
        if value not in lowest:
            lowest = sorted([*lowest, value])[:2]
        highest = max(highest, value)
        if len(lowest) == 2 and lowest[0] < limit <= highest:
            return HashSplit(limit)
    if len(lowest) < 2:
        return HashSplit(0)
    if highest < limit:  # so small a source that all of it is below the limit
        return HashSplit(highest)
    return HashSplit(max(limit, lowest[1]))
