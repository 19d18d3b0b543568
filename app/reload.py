"""`bert-serve reload`: the service on a port loads its checkpoints anew. Linux; the same user, or root."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_LISTENING = "0A"


def reload(port: int) -> int:
    """Send SIGHUP to the service that listens on the port. Returns the exit code.

    A process that has no handler would end by the signal: it is passed over.
    """
    told = [pid for pid in {_leader(pid) for pid in listeners(port)} if _handles_hangup(pid)]
    for pid in told:
        os.kill(pid, signal.SIGHUP)
    if not told:
        print(f"bert-serve: no service that can be told listens on port {port}", file=sys.stderr)  # noqa: T201
    return 0 if told else 1


def listeners(port: int) -> list[int]:
    """Processes that listen on a port."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == _LISTENING and int(local.rsplit(":", 1)[1], 16) == port:
                    sockets.add(f"socket:[{rest[5]}]")
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if not sockets.isdisjoint(_open(folder))]


def _open(folder: Path) -> list[str]:
    """What a process has open, as far as this one may know."""
    files = []
    with suppress(OSError):
        for descriptor in (folder / "fd").iterdir():
            with suppress(OSError):
                files.append(str(descriptor.readlink()))
    return files


def _leader(pid: int) -> int:
    """Of a worker, the process that watches it and tells those that do not listen yet; else itself."""
    with suppress(OSError):
        if b"multiprocessing.spawn" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _handles_hangup(pid: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & 1 << signal.SIGHUP - 1)
    return False
