"""One process per folder of a run."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.training.commands import environment_of, occupied, set_ranks
from training.errors import RunError
from training.runtime.lock import ranks_in_turn, run_lock


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


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_ranks_in_turn_on_a_file_system_without_locks_use_one_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    lockf = fcntl.lockf

    def unsupported_in_run(file: Any, operation: int) -> None:
        if Path(file.name).is_relative_to(tmp_path / "run"):
            raise OSError(code, "no locks")
        lockf(file, operation)

    def is_locked(file: Path) -> bool:
        program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True)
        return "BlockingIOError" in done.stderr

    node = tmp_path / "node"
    node.mkdir()
    monkeypatch.setattr(fcntl, "lockf", unsupported_in_run)
    monkeypatch.setattr(tempfile, "tempdir", str(node))
    set_ranks(monkeypatch, environment_of(0, 2, per_node=2))
    with ranks_in_turn(tmp_path / "run"):
        (file,) = node.iterdir()
        assert is_locked(file)
        assert "do not start several nodes in it at the same time" in caplog.text
    assert not is_locked(file)
