"""Splits lines of running text into texts: plain text, fastText."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from bert_tables import LINE, Table, TableError
from bert_tables.reader import FASTTEXT_LABEL, has_fasttext_label
from training.sources.tables import sound_rows

MAX_CHARACTERS = 4_000_000
"""A longer document of plain text is split into several, to bound memory."""

_BREAK = re.compile(r"(?:<br\s*/?>\s*)+", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LABEL = re.compile(rf"(?<!\S){FASTTEXT_LABEL}(\S+)\s*")
_NEWLINE = re.compile(r"[ \t]*\n[ \t]*")
_BLANK_LINE = re.compile(r"[ \t]*\n\s*\n[ \t]*")


def numbered_lines(table: Table) -> Iterator[tuple[int, str]]:
    """The lines of a file: (number from 1, line without its end). A line longer than `MAX_CHARACTERS` is split into
    parts. Raises TableError like `sound_rows`."""
    for row in sound_rows(table):
        line = row.cells[LINE]
        for start in range(0, max(1, len(line)), MAX_CHARACTERS):
            yield row.number, line[start : start + MAX_CHARACTERS]


def check_unlabelled(numbered: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, str]]:
    """The lines. Raises TableError if the first one begins with a fastText label."""
    for number, line in numbered:
        if number == 1 and has_fasttext_label(line):
            remedy = 'set the source\'s `format` to "fasttext", or to "text" to read labels as a part of the text'
            raise TableError(f"{name}: has lines with labels of fastText; {remedy}")
        yield number, line


def plain_texts(lines: Iterable[str], separator: str = "\n") -> Iterator[str]:
    """Texts that are separated by blank lines."""
    return _joined((clean(line) or None for line in lines), separator)


def whole_texts(lines: Iterable[str], boundary: re.Pattern[str] | None = None) -> Iterator[str]:
    """The lines between those that match a boundary as one text, unchanged; as several texts if there are very many.

    >>> list(whole_texts(["a", "", "b", " <end> ", "c"], re.compile("<end>")))
    ['a\\n\\nb', 'c']
    """
    return _joined(None if boundary and boundary.fullmatch(line.strip()) else line for line in lines)


def fasttext_line(line: str) -> tuple[list[str], str]:
    """The labels of a fastText line, at any place in it, and its text.

    >>> fasttext_line("__label__2 Great CD: my lovely Pat ...")
    (['2'], 'Great CD: my lovely Pat ...')
    """
    return [label.rstrip(",") for label in _LABEL.findall(line)], _LABEL.sub("", line).strip()


def without_breaks(text: str) -> str:
    """Replace HTML breaks by newlines."""
    return _BREAK.sub("\n", text) if "<" in text else text


def clean(text: str) -> str:
    """Apply `tidy`, and replace HTML breaks by newlines."""
    return tidy(without_breaks(text))


def tidy(text: str) -> str:
    """Replace line ends of other systems by newlines, and lone surrogates by a replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell lone surrogates
        text = _SURROGATE.sub("\ufffd", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def unwrapped(text: str) -> str:
    """The text with a line for each paragraph: blank lines end one, other newlines become spaces."""
    return "\n".join(_NEWLINE.sub(" ", paragraph) for paragraph in _BLANK_LINE.split(text))


def _joined(paragraphs: Iterable[str | None], separator: str = "\n") -> Iterator[str]:
    waiting: list[str] = []
    size = 0
    for paragraph in itertools.chain(paragraphs, [None]):
        if waiting and (paragraph is None or size >= MAX_CHARACTERS):
            yield separator.join(waiting)
            waiting, size = [], 0
        if paragraph is not None:
            waiting.append(paragraph)
            size += len(paragraph)
