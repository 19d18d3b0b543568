"""Values of a label column: combinations of labels, numbers, spellings of one label."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from training.sources.labels import number_of

SEPARATORS = (";", "|", ",")
MAX_LABELS = 200
"""Maximum number of different values of a column that is chosen as labels without being named."""
MAX_NUMBERS = 20
"""Maximum number of different whole numbers that are taken for labels, such as stars, and not for a quantity."""
_LABEL_CHARACTERS = 40


def separator_of(values: Iterable[str], separators: Iterable[str] = SEPARATORS) -> str | None:
    """The one of several characters that splits values into labels; None if there is none.

    There must be fewer labels than values, and most labels must recur in other values.

    >>> separator_of(["price", "service", "price; service"]), separator_of(["Food, Drink", "Home, Garden"])
    (';', None)
    """
    values = list(values)
    found = {}
    for separator in separators:
        cells = [{part.strip() for part in value.split(separator)} - {""} for value in values]
        parts = Counter(part for cell in cells for part in cell)
        recurring = sum(count > 1 for count in parts.values())
        is_decimal_mark = separator in ",." and all(part.isdecimal() for part in parts)
        if (
            any(len(cell) > 1 for cell in cells)
            and len(parts) < len(values)
            and recurring >= 0.8 * len(parts)
            and max(map(len, parts)) <= _LABEL_CHARACTERS
            and not is_decimal_mark
        ):
            found[separator] = len(parts)
    return min(found, key=found.__getitem__, default=None)


def separator_advice(values: Iterable[str]) -> Iterator[str]:
    """Advice if values look like combinations that are not read as such: `a-b` may also be one label.

    >>> list(separator_advice(["price", "service", "price#service"]))
    ["labels look like combinations separated by '#': if they are, add --separator '#'"]
    """
    marks = {mark for value in values for mark in value if not mark.isalnum() and not mark.isspace()}
    if separator := separator_of(values, sorted(marks.difference(SEPARATORS, "()[]{}'\""))):
        yield f"labels look like combinations separated by {separator!r}: if they are, add --separator {separator!r}"


def are_labels(values: Mapping[str, int], *, has_more: bool) -> bool:
    """Whether values look like labels: few short ones that recur, or combinations of them.

    Args:
        values: Number of rows with each.
        has_more: Whether there are further values.
    """
    if separator_of(values):
        return True
    is_few = not has_more and 2 <= len(values) <= MAX_LABELS and 5 * len(values) <= sum(values.values())
    return is_few and sum(map(len, values)) <= _LABEL_CHARACTERS * len(values)


def are_quantities(values: Iterable[str]) -> bool:
    """Whether all values are numbers, and too many or too fine to be labels.

    >>> are_quantities(["1", "2", "3.0"]), are_quantities(["1.5", "2"]), are_quantities(map(str, range(100)))
    (False, True, True)
    """
    numbers = {number_of(value) for value in values}
    if None in numbers:
        return False
    return len(numbers) > MAX_NUMBERS or any(number % 1 for number in numbers if number is not None)


def spellings(counts: Mapping[str, int]) -> list[list[str]]:
    """Values that differ only by case, by blanks, or by the form of their Unicode characters. Each group has two or
    more, the most frequent first.

    >>> spellings({"Good": 5, "good": 9, "bad": 3, "b ad": 1, "fine": 7})
    [['good', 'Good'], ['bad', 'b ad']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for value in sorted(counts, key=lambda value: -counts[value]):
        groups["".join(unicodedata.normalize("NFKC", value).casefold().split())].append(value)
    return [group for group in groups.values() if len(group) > 1]


def natural_order(value: str) -> tuple[float, str]:
    """Key that sorts numbers by size, before words in alphabetical order."""
    number = number_of(value)
    return (math.inf, value.casefold()) if number is None else (number, value)
