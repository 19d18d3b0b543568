"""The loop of an inference process, with a device of the test."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import OutOfMemoryError
from app.inference.contract import Part, Query
from app.inference.frames import HEADER_BYTES, Batch, frame, read_scores, write_batch
from app.inference.process_main import _serve
from model import Encoding


@dataclass
class Device:
    """Scores a batch with its number of tokens, and writes down what it does."""

    info: Any
    done: list[str] = field(default_factory=list)

    def warm_up_alone(self) -> None:
        pass

    def launch(self, batch: Batch) -> Callable[[], bytes]:
        tokens = len(batch.ids)
        self.done.append(f"launch {tokens}")
        if tokens == 13:
            raise OutOfMemoryError

        def wait() -> bytes:
            self.done.append(f"collect {tokens}")
            return array("f", [tokens]).tobytes()

        return wait


def part_of(tokens: int) -> Part:
    return Part(Query([Encoding(array("i", [5] * tokens), tokens, [], truncated=False)], 1), 0, 1)


def reply(connection: socket.socket) -> Any:
    size = int.from_bytes(connection.recv(HEADER_BYTES, socket.MSG_WAITALL), "little")
    return pickle.loads(connection.recv(size, socket.MSG_WAITALL))


@pytest.mark.parametrize(
    ("in_flight", "order"),
    [
        (1, ["launch 3", "collect 3", "launch 13", "launch 5", "collect 5"]),
        (2, ["launch 3", "launch 13", "collect 3", "launch 5", "collect 5"]),
    ],
)
def test_next_batch_is_launched_while_a_device_computes(in_flight: int, order: list[str]) -> None:
    device = Device(SimpleNamespace(in_flight=in_flight))
    ours, theirs = socket.socketpair()
    parts = [part_of(tokens) for tokens in (3, 13, 5)]
    with ours:
        for part in parts:
            ours.sendall(frame(write_batch(0, [part])))
        serving = threading.Thread(target=_serve, args=(device, theirs, 0))
        serving.start()
        assert reply(ours) == os.getpid()
        first, failed, last = (reply(ours) for _ in parts)
    serving.join()
    theirs.close()
    assert device.done == order
    assert read_scores(parts[:1], first).outputs == [[[3.0]]]
    assert isinstance(failed, OutOfMemoryError), "the error of one batch is its own"
    assert read_scores(parts[2:], last).outputs == [[[5.0]]]
