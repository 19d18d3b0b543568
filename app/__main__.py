"""`bert-serve`, and `python -m app`.

Signals are handled first, because imports take a second. The server is imported last, so a wrong setting is reported at
once.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from app.server.hangup import Hangup


def serve() -> None:
    """Serve with the settings of the command line and the environment, then end the process."""
    while (unused := os.open(os.devnull, os.O_RDWR)) <= 2:  # so that no socket takes the place of a closed stream
        pass
    os.close(unused)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    hangup = Hangup()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, hangup.note_signal)  # reloads once the server runs; until then nothing is loaded
    from app.errors import FlagError, SettingsError
    from app.inference.environment import set_defaults
    from app.observability.log_config import log_fatal, open_stderr
    from app.server import file_limits
    from app.settings import Settings, asked_log_format, parse_flags

    sys.stderr = open_stderr()
    file_limits.raise_limit()
    try:
        settings = Settings.read(os.environ, parse_flags(sys.argv[1:]))
        import opentelemetry.propagate  # noqa: F401 (reads OTEL_PROPAGATORS, and raises ValueError)
    except (SettingsError, ValueError) as error:
        log_fatal(str(error), asked_log_format(sys.argv[1:], os.environ))
        sys.exit(2 if isinstance(error, FlagError) else 1)
    set_defaults(os.environ)
    from app.server.main import serve as serve_http

    sys.exit(serve_http(settings, hangup))


def _exit(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Exit on a signal until the server handles it: process 1 of a container gets only signals that it handles."""
    sys.exit(0)


if __name__ == "__main__":
    from bert_service import check_packages

    check_packages("bert-serve", "model")
    serve()
