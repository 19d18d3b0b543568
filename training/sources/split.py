"""Which documents are trained on and which are held out: one hash split for pretraining text and labelled text.

The hash of a document's group, or of its normalised text, decides, so every run makes the same split and equal texts
are always in the same part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

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


def held_out_below(documents: Iterable[Document], fraction: float) -> int:
    """The limit below which a `group_hash` is held out: about `fraction` of the groups of a source, at least one and
    never all. A source of one group is trained on. Reads documents only until both parts have one."""
    limit = int(fraction * 2**64)
    lowest, highest = 2**64, -1
    for document in documents if limit else ():
        value = group_hash(document)
        lowest, highest = min(lowest, value), max(highest, value)
        if lowest < limit <= highest:
            return limit
    return min(max(limit, lowest + 1), highest) if lowest < highest else 0
