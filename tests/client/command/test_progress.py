"""What is seen of a long job."""

from __future__ import annotations

import io
import sys

import pytest

from bert_client.command.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, size: int | None) -> str:
    """What two rows write, the second with an error, while half a hundred bytes have been read."""
    with Progress(stream, every=0).of(size) as progress:
        progress.read(50)
        progress.count(failed=False)
        progress.count(failed=True)
    return stream.getvalue()


@pytest.mark.parametrize(("size", "line"), [(200, "\r 25% 2 rows\n"), (None, "\r2 rows\n")])
def test_counter_stands_in_for_the_bar(monkeypatch: pytest.MonkeyPatch, size: int | None, line: str) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)  # as if it were not installed
    written = shown(Terminal(), size)
    assert line in written
    assert "2 rows, 1 with an error, " in written


def test_bar_shows_the_share_of_the_file() -> None:
    pytest.importorskip("tqdm")
    written = shown(Terminal(), 200)
    assert "25%" in written
    assert "2 rows" in written


def test_progress_counts_the_rows_of_an_earlier_run() -> None:
    stream = io.StringIO()
    with Progress(stream).of(None) as progress:
        progress.begin(5, 2)
        progress.count(failed=True)
    assert stream.getvalue().startswith("6 rows, 3 with an error, ")


def test_only_the_summary_is_written_where_nobody_looks() -> None:
    assert len(shown(io.StringIO(), 200).splitlines()) == 1
