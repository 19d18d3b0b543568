"""Spellings of a missing value, in texts and labels alike."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

MISSING_WORDS = ("null", "na", "n/a", "<na>", "#n/a", "nan", "nat", "none", "nil", "-")
"""Spellings in databases, pandas and spreadsheets, in lower case. They are read as values, because a label or an answer
may be called `None` or `NA`; readers count them and report the number."""
_ERROR_VALUE = re.compile(r"#[^\W_a-z]+(/0)?[!?]|#NV")
"""A spreadsheet's error value, such as `#REF!`, `#NAME?`, `#DIV/0!`, or in German `#WERT!`."""
_MAX_LENGTH = 20
_SHOWN_WORDS = 10


class MissingWords:
    """Counts the cells of texts that may stand for a missing value."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, column: str, text: Any) -> None:
        """Count a cell of a column if it is such a word."""
        if isinstance(text, str) and is_missing_word(text):
            self._counts[column, text.strip()] += 1

    def notes(self, rows: int) -> Iterator[str]:
        """A sentence for each word and column, the most frequent first. `rows`: the number of all rows."""
        for (column, word), count in self._counts.most_common(_SHOWN_WORDS):
            yield (
                f"{count:,} of {rows:,} rows have {word!r} in the column {column!r}; it is read as a text: if it means "
                "that there is none, empty these cells"
            )


def is_missing_word(text: str) -> bool:
    """Whether a text may stand for a missing value, though it is read as it is.

    >>> [is_missing_word(text) for text in ("NULL", " #REF!", "n/a", "#DIV/0!", "#great!", "nothing")]
    [True, True, True, True, False, False]
    """
    word = text.strip() if len(text) <= _MAX_LENGTH else ""
    return word.lower() in MISSING_WORDS or _ERROR_VALUE.fullmatch(word) is not None


def is_missing(value: Any) -> bool:
    r"""Whether a cell is empty, null, NaN, or `\N`, which MySQL, PostgreSQL and Hive write for null.

    >>> [is_missing(cell) for cell in (None, " ", float("nan"), r"\N", "NA", 0)]
    [True, True, True, True, False, False]
    """
    if isinstance(value, str):
        return value.strip() in ("", r"\N")
    return value is None or (isinstance(value, float) and math.isnan(value))
