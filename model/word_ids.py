"""Token ids by word.

BERT's normalizer and pre-tokenizer split a text at white space and around punctuation, so the ids of a word do not
depend on its neighbours. Looking words up is several times faster than WordPiece on each text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable

QUICK_CHARACTERS = 512
"""Shorter texts take at most 3 ms with any words. The slowest words have 100 letters."""
QUICK_WORK = 65_536
"""Work of WordPiece that takes at most 3 ms: a unit (see `work_of`) takes 4 to 35 ns."""
MAX_QUICK_CHARACTERS = 8192
"""Longer texts are never quick: looking up 8192 known words of one letter takes 1 ms."""

_MAX_WORD = 24
"""Longer words hardly recur, so they are not remembered."""
_MAX_NEW_WORDS = 64
"""Number of new words that are remembered of a text that is not looked up by word."""

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
        self.work = 0
        """Work on all words that were new; see `work_of`."""
        self._ids, self._typecode, self._limit = ids, typecode, limit

    def of_text(self, text: str) -> bytes:
        """The ids of a text, end to end. Raises the errors of `ids`."""
        return b"".join(map(self.__getitem__, _WORD.findall(text)))

    def of_familiar_text(self, text: str) -> bytes | None:
        """The ids of a text, end to end; None if that takes more than 3 ms, because it holds the interpreter lock;
        WordPiece on the whole text does not. Then some new words are remembered for the next text."""
        if self.is_quick(text):
            return self.of_text(text)
        if len(text) <= MAX_QUICK_CHARACTERS:
            for word in self._new_words(text)[:_MAX_NEW_WORDS]:
                if len(word) <= _MAX_WORD:
                    self[word]
        return None

    def is_quick(self, text: str) -> bool:
        """Whether the ids of a text take at most 3 ms, because it is short or has few new words."""
        if QUICK_CHARACTERS < len(text) <= MAX_QUICK_CHARACTERS:
            return sum(map(work_of, self._new_words(text))) <= QUICK_WORK
        return len(text) <= QUICK_CHARACTERS

    def _new_words(self, text: str) -> list[str]:
        """The words of a text that are not remembered."""
        return [word for word in _WORD.findall(text) if word not in self]

    def __missing__(self, word: str) -> bytes:
        found = array(self._typecode, self._ids(word)).tobytes()
        self.work += work_of(word)
        if len(self) >= self._limit:
            self.clear()
        if len(word) <= _MAX_WORD:
            self[word] = found
        return found


def work_of(word: str) -> int:
    """Upper bound on the work of WordPiece. It looks for the longest piece at each character of a word, so its time
    grows with the square of the word's length. 16 stands for the call."""
    return (len(word) + 16) ** 2
