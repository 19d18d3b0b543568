"""`bert-serve`, and `python -m app`. Loads the server last: a wrong setting is told at once."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from app.server import file_limits
from app.settings import Settings, SettingsError


def serve() -> None:
    """Serve with the settings of the command line and the environment; ends the process."""
    file_limits.hold_standard_streams()
    file_limits.raise_limit()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    if hasattr(signal, "SIGHUP"):  # "load the checkpoints anew"; while they are being loaded, nothing to do
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        settings = Settings.from_command_line(sys.argv[1:], os.environ)
    except SettingsError as error:
        sys.exit(f"bert-serve: {error}")
    # OpenMP's threads spin for milliseconds while they wait for each other, by default. Here they share their
    # cores with the event loop, the tokenizer and whatever else runs: on two busy cores, sleeping at once made
    # a batch 4 to 7 times as fast. But a thread that sleeps has to be woken, forty times in a pass; spinning
    # for some ten microseconds first takes a third off a single request. Read when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # The tokenizer would start a thread for each core, to share out a batch of texts: it gets one at a time.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from app.server.main import run

    sys.exit(run(settings))


def _end(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Until the server has its own way: the first process of a container ignores what it does not handle."""
    sys.exit(0)


if __name__ == "__main__":
    serve()
