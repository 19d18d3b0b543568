"""What is seen of a long job."""

from __future__ import annotations

import io

import pytest

from bert_client.command.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, size: int | None) -> str:
    """What two rows write, the second with an error, when 50 bytes of the file have been read."""
    progress = Progress(stream, every=0)
    progress.size = size
    progress.read(50)
    progress.count(None)
    progress.count("the text is empty")
    progress.end_line()
    progress.summarize()
    return stream.getvalue()


@pytest.mark.parametrize(("size", "line"), [(200, "\r 25% 2 rows\n"), (None, "\r2 rows\n")])
def test_progress_counts_on_a_terminal(size: int | None, line: str) -> None:
    written = shown(Terminal(), size)
    assert line in written
    assert written.splitlines()[-2].startswith("2 rows, 1 with an error, ")


def test_progress_counts_the_rows_of_an_earlier_run() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.begin(5, 2)
    progress.count("the text is empty")
    progress.summarize()
    assert stream.getvalue().startswith("6 rows, 3 with an error, ")
    assert stream.getvalue().splitlines()[1:] == [
        "  2 such as: an error of an earlier run",
        "  1 such as: the text is empty",
    ]


def test_progress_most_frequent_errors_are_in_the_summary() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for error, rows in {"row 1 is bad": 3, "empty": 4, "rare": 1, "row 2 is bad": 2, "gone": 2, "\x1b[2J": 2}.items():
        progress.count_errors(error, rows)
    progress.count_errors("gone", -2)
    progress.summarize()
    assert stream.getvalue().splitlines()[1:] == [
        "  5 such as: row 1 is bad",
        "  4 such as: empty",
        "  2 such as: \\u001b[2J",
    ]


def test_progress_errors_of_very_many_kinds_take_little_memory() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for kind in range(2000):
        progress.count("x" * kind)
    progress.count_errors("", 5)
    progress.summarize()
    written = stream.getvalue()
    assert written.startswith("2,000 rows, 2,005 with an error")
    assert max(map(len, written.splitlines())) < 400


def test_progress_without_a_terminal_is_the_summary() -> None:
    summary, error = shown(io.StringIO(), 200).splitlines()
    assert summary.startswith("2 rows, 1 with an error")
    assert error == "  1 such as: the text is empty"
