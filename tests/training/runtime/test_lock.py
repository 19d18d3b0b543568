"""One process per folder of a run."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from tests.training.commands import occupied
from training.errors import RunError
from training.runtime.lock import run_lock


def test_run_lock_ends_with_its_process_and_not_with_its_workers(tmp_path: Path) -> None:
    with occupied(tmp_path / "run") as other:
        with pytest.raises(RunError, match=r"another process works in .*run: wait"), run_lock(tmp_path / "run"):
            pass
        with run_lock(tmp_path / "other"):
            pass
        other.kill()
        other.wait()
        with run_lock(tmp_path / "run"):
            pass


def test_run_lock_on_a_file_system_without_locks_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unsupported)
    with run_lock(tmp_path):
        assert "do not start a second run in this folder" in caplog.text
