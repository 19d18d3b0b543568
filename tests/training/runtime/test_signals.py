"""Signals that end a run: the first is handled, an ignored one stays ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from training.runtime.signals import STOP_SIGNALS, ignore_stop_signals, stop_signals


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """The signals do what they do in a new process, even if the tests were started under `nohup`."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signals_call_the_handler_once(number: signal.Signals) -> None:
    got: list[int] = []
    with stop_signals(lambda number, _: got.append(number)):
        signal.raise_signal(number)
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        else:
            signal.raise_signal(number)
    assert got == [number]
    assert signal.getsignal(number) == signal.default_int_handler


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signals_leave_an_ignored_signal_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with stop_signals(signal.default_int_handler):
        signal.raise_signal(number)
    assert signal.getsignal(number) == signal.SIG_IGN


def test_ignore_stop_signals_ignores_all() -> None:
    ignore_stop_signals()
    for number in STOP_SIGNALS:
        signal.raise_signal(number)
