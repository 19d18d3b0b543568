"""Splits documents into training and held-out parts, by the same hash for pretraining text and labelled text.

The hash of a document's group, or of its normalised text, decides, so every run makes the same split and equal texts
are always in the same part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from training.sources.documents import Document
from training.sources.plain_text import without_breaks

_ASCII_MARKS = bytes(code for code in range(128) if not chr(code).isalnum())
_TYPOGRAPHIC_MARKS = [mark.encode() for mark in "‘’“”«»–—…\xa0"]


def text_hash(text: str) -> int:
    """64-bit hash of a text that ignores case, white space, punctuation and `<br />`. Texts with the same hash count as
    the same text. Punctuation counts in a text without anything else.

    >>> text_hash("It isn’t “good”.") == text_hash("it is n't ``good''")
    True
    """
    whole = without_breaks(text).casefold().encode(errors="surrogatepass")
    letters = whole.translate(None, _ASCII_MARKS)
    for mark in () if letters.isascii() else _TYPOGRAPHIC_MARKS:
        letters = letters.replace(mark, b"")
    return int.from_bytes(hashlib.blake2b(letters or whole, digest_size=8).digest(), "big")


def hashes(document: Document) -> tuple[int, int]:
    """64-bit hashes of the document's text, and of its group, or of its text if it has none. A group is not split."""
    text = text_hash(document.text)
    return text, text_hash(document.group) if document.group else text


def held_out_below(groups: Iterable[int], fraction: float) -> int:
    """The limit below which a group's hash is held out: about `fraction` of the groups of a source, at least one and
    never all. A source of one group is trained on. Hashes are read only until both parts have one."""
    limit = int(fraction * 2**64)
    lowest, highest = 2**64, -1
    for value in groups if limit else ():
        lowest, highest = min(lowest, value), max(highest, value)
        if lowest < limit <= highest:
            return limit
    return min(max(limit, lowest + 1), highest) if lowest < highest else 0
