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
    progress.count(failed=False)
    progress.count(failed=True)
    progress.end_line()
    progress.summarize()
    return stream.getvalue()


@pytest.mark.parametrize(("size", "line"), [(200, "\r 25% 2 rows\n"), (None, "\r2 rows\n")])
def test_progress_counts_on_a_terminal(size: int | None, line: str) -> None:
    written = shown(Terminal(), size)
    assert line in written
    assert written.splitlines()[-1].startswith("2 rows, 1 with an error, ")


def test_progress_counts_the_rows_of_an_earlier_run() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.begin(5, 2)
    progress.count(failed=True)
    progress.summarize()
    assert stream.getvalue().startswith("6 rows, 3 with an error, ")


def test_progress_without_a_terminal_is_the_summary() -> None:
    assert len(shown(io.StringIO(), 200).splitlines()) == 1
