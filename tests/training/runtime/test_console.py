"""The console of a training: text that cannot be written is dropped or escaped. Processes are in tests/training."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from training.runtime.console import Console, guard_console


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def closed_terminal() -> int:
    terminal, slave = os.openpty()
    os.close(terminal)
    return slave


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.mark.parametrize("place", [broken_pipe, closed_terminal, pytest.param(full_disk, marks=needs_full)])
@pytest.mark.parametrize("text", ["a line\n", "a word", "a page\n" * 10_000])
def test_console_drops_what_cannot_be_written(place: Callable[[], int], text: str) -> None:
    descriptor = place()
    with os.fdopen(descriptor, "w") as stream:  # closing it would raise, too
        console = Console(stream)
        assert [console.write(text) for _ in range(3)] == [len(text)] * 3
        console.flush()
        print("another", file=console, flush=True)
        assert os.fstat(descriptor).st_rdev == Path(os.devnull).stat().st_rdev


def test_console_writes_lines_at_once_and_escapes_what_its_encoding_lacks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    print("schön \ud800", file=Console(stream))  # type: ignore[arg-type]
    assert raw.getvalue() == rb"sch\xf6n \ud800" + b"\n"
    assert Console(stream).encoding == "ascii", "further attributes are those of the stream"


def test_console_without_a_descriptor_drops_text_too() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert Console(Broken()).write("text") == 4


def test_guard_console_is_in_front_of_both_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", None)  # its descriptor is closed
        guard_console()
        first = sys.stdout, sys.stderr
        guard_console()
        last = sys.stdout, sys.stderr
        print("a line")
        print("an error", file=sys.stderr)
        sys.stderr.close()
    assert first == last
    assert first[0].getvalue() == "a line\n"  # type: ignore[attr-defined]
