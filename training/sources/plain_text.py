"""Splits lines of running text into texts: plain text, fastText."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from bert_tables import LINE, Table, TableError
from bert_tables.reader import FASTTEXT_LABEL, has_fasttext_label
from training.sources.tables import log_once, sound_rows

MAX_CHARACTERS = 4_000_000
"""A longer document of plain text is split into several, to bound memory."""

SURVEYED_LINES = 10_000
"""Different lines of a file among which `surveyed` looks for one that recurs."""

BLANK = re.compile("")
"""The boundary of texts that are separated by blank lines."""

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


def surveyed(lines: Iterable[str], name: str) -> Iterator[str]:
    """The lines. Logs a warning if one of them is a hundredth of those counted, because it may end a document."""
    counts: Counter[str] = Counter()
    for line in lines:
        if len(counts) < SURVEYED_LINES and 0 < len(line) <= 100 and (text := line.strip()):
            counts[text] += 1
        yield line
    for line, number in counts.most_common(1):
        if number >= max(10, 0.01 * counts.total()):
            log_once(
                f"{name}: the line {line!r} recurs; if it ends a document, set the source's `boundary`, a regular "
                f"expression such as '{re.escape(line)}'"
            )


def whole_texts(lines: Iterable[str], boundary: re.Pattern[str] | None) -> Iterator[str]:
    """The lines between those that match a boundary as one text, unchanged; as several texts if there are very many.

    >>> list(whole_texts(["a", "", "b", " <end> ", "c"], re.compile("<end>")))
    ['a\\n\\nb', 'c']
    """
    waiting: list[str] = []
    size = 0
    for line in itertools.chain(lines, [None]):
        is_end = line is None or (boundary is not None and boundary.fullmatch(line.strip()))
        if waiting and (is_end or size >= MAX_CHARACTERS):
            yield "\n".join(waiting)
            waiting, size = [], 0
        if line is not None and not is_end:
            waiting.append(line)
            size += len(line)


def fasttext_line(line: str) -> tuple[list[str], str]:
    """The labels of a fastText line, at any place in it, and its text.

    >>> fasttext_line("__label__2 Great CD: my lovely Pat ...")
    (['2'], 'Great CD: my lovely Pat ...')
    """
    return [label.rstrip(",") for label in _LABEL.findall(line)], tidy(_LABEL.sub("", line))


def without_breaks(text: str) -> str:
    """Replace HTML breaks by newlines."""
    return _BREAK.sub("\n", text) if "<" in text else text


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
