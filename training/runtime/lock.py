"""A lock that admits one process per folder of a run."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from training.errors import RunError
from training.runtime.distributed import launched

logger = logging.getLogger(__name__)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, because they would delete its checkpoints or the corpus in use. The lock
    ends with the process; forked workers do not hold it.

    Raises:
        RunError: another process works in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"another process works in {folder}: wait until it ends, or give this run another name"
            ) from error
        except OSError as error:  # some network file systems have no locks
            logger.warning("cannot lock %s (%s): do not start a second run in this folder", folder, error)
        yield


@contextmanager
def ranks_in_turn(folder: Path) -> Iterator[None]:
    """Let the ranks of a node enter one after another: the first makes the files, and the others use them.

    In a folder without locks they use a lock file among the node's temporary files.
    """
    if launched().world_size == 1:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "turn").open("w") as file, ExitStack() as stack:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("cannot lock %s (%s): do not start several nodes in it at the same time", folder, error)
            agent = f"bert-train-{os.getuid()}-{os.getppid()}"  # the process of torchrun that started these ranks
            local = stack.enter_context(Path(tempfile.gettempdir(), agent).open("a"))
            fcntl.lockf(local, fcntl.LOCK_EX)
        yield
