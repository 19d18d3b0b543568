"""Spellings of a missing value, in texts and labels alike."""

from __future__ import annotations

import math
from typing import Any

MISSING_WORDS = ("NULL", "null", "NA", "N/A", "<NA>", "#N/A", "NaN", "nan", "None", "-")
"""Spellings in databases, pandas and spreadsheets. They are read as values, because a label or an answer may be called
`None` or `NA`; readers count them and report the number."""


def is_missing(value: Any) -> bool:
    r"""Whether a cell is empty, null, NaN, or `\N`, which MySQL, PostgreSQL and Hive write for null.

    >>> [is_missing(cell) for cell in (None, " ", float("nan"), r"\N", "NA", 0)]
    [True, True, True, True, False, False]
    """
    if isinstance(value, str):
        return value.strip() in ("", r"\N")
    return value is None or (isinstance(value, float) and math.isnan(value))
