"""The signals that end a run: Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Call a handler at the first signal that ends a run. A second Ctrl-C raises KeyboardInterrupt.

    Signals that are ignored, as after `nohup`, stay ignored.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        # `timeout`, closed terminals and batch systems send their signal more than once.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_IGN)
        handler(number, frame)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handled = {number: old for number, old in before.items() if old != signal.SIG_IGN}
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in handled.items():
            signal.signal(number, old)


def ignore_stop_signals(_worker: int = 0) -> None:
    """Ignore `STOP_SIGNALS` in a worker process. They reach all processes of a run, and the parent decides, because it
    needs its workers' last results."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
