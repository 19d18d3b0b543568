"""Token ids by word.

BERT's normalizer and pre-tokenizer split a text at white space and around punctuation, so the ids of a word do not
depend on its neighbours. Looking words up is several times faster than WordPiece on each text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable

_MAX_WORD = 50
"""Longer words hardly recur, so they are not remembered."""

_WORD = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\\-`{-~]|\[UNK\]|\[")
"""One character of ASCII punctuation, or a run of anything else between ASCII white space. A spelled-out `[MASK]` is
three words here, not the special token. The alternatives stand in the order of their frequency."""


class WordIds(dict[str, bytes]):
    """The ids of words, found when they are first looked up: about 200 bytes per word."""

    def __init__(self, ids: Callable[[str], Iterable[int]], typecode: str, limit: int) -> None:
        """
        Args:
            ids: the token ids of a text.
            typecode: type code of `array`: "H" for 16 bits, "i" or "I" for 32.
            limit: words to remember; all are forgotten when there are more.
        """
        super().__init__()
        self._ids, self._typecode, self._limit = ids, typecode, limit

    def of_text(self, text: str) -> bytes:
        """The ids of a text, end to end. Raises the errors of `ids`."""
        return b"".join(map(self.__getitem__, _WORD.findall(text)))

    def of_familiar_text(self, text: str, most: int) -> bytes | None:
        """The ids of a text, end to end; None if more than `most` of its words are new. Then WordPiece on the text is
        faster. The first `most` new words are remembered for the next text."""
        words = _WORD.findall(text)
        if len(words) > most and len(new := [word for word in words if word not in self]) > most:
            for word in new[:most]:
                self[word]
            return None
        return b"".join(map(self.__getitem__, words))

    def __missing__(self, word: str) -> bytes:
        found = array(self._typecode, self._ids(word)).tobytes()
        if len(self) >= self._limit:
            self.clear()
        if len(word) <= _MAX_WORD:
            self[word] = found
        return found
