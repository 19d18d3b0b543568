"""Measures how long a device waits for Python: `python -m benchmarks.in_flight`.

A thread stands for the device: it sleeps for each batch as long as a GPU would compute it. The loop of an inference
process unpacks the batches for it, with one and with two in flight. Another process writes prepared batches and reads
the replies.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import socket
import threading
import time
from array import array
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from app.inference.contract import Part, Query
from app.inference.frames import HEADER_BYTES, Batch, frame, write_batch
from app.inference.process_main import _serve
from app.inference.processes import _checked
from app.inference.torch_backend import _packed
from model import Encoding

LABELS = 2


class Device:
    """Sleeps for each batch, and counts its idle time between the first and the last."""

    def __init__(self, in_flight: int, tokens_per_second: float) -> None:
        self.info = SimpleNamespace(in_flight=in_flight)
        self.waited, self.computed = 0.0, 0.0
        self._tokens_per_second = tokens_per_second
        self._batches: SimpleQueue[tuple[int, threading.Event]] = SimpleQueue()
        threading.Thread(target=self._compute, daemon=True).start()

    def warm_up_alone(self) -> None:
        pass

    def launch(self, batch: Batch) -> Callable[[], bytes]:
        done = threading.Event()
        self._batches.put((_packed(batch)[0].total_tokens, done))
        return partial(self._scores, len(batch.lengths), done)

    def _scores(self, inputs: int, done: threading.Event) -> bytes:
        done.wait()
        return array("f", [0.5] * LABELS * inputs).tobytes()

    def _compute(self) -> None:
        ended = None
        while True:
            tokens, done = self._batches.get()
            began = time.perf_counter()
            self.waited += 0.0 if ended is None else began - ended
            time.sleep(tokens / self._tokens_per_second)
            ended = time.perf_counter()
            self.computed += ended - began
            done.set()


def write(connection: socket.socket, length: int, tokens: int, batches: int, in_flight: int) -> None:
    """Send batches of texts of `length` tokens, with up to `in_flight` batches in flight."""
    count = tokens // length
    query = Query([Encoding(array("i", [5] * length), length, [], truncated=False)] * count, LABELS)
    batch = frame(write_batch(0, [Part(query, 0, count)]))
    _read(connection)  # the process id
    for number in range(batches):
        connection.sendall(batch)
        if number >= in_flight - 1:
            _read(connection)
    connection.shutdown(socket.SHUT_WR)


def _read(connection: socket.socket) -> Any:
    size = int.from_bytes(connection.recv(HEADER_BYTES, socket.MSG_WAITALL), "little")
    return _checked(pickle.loads(connection.recv(size, socket.MSG_WAITALL)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens-per-second", type=float, default=5e6, help="of the device")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a batch")
    parser.add_argument("--batches", type=int, default=500)
    options = parser.parse_args()
    print("| tokens of a text | in flight | the device waits |\n|---|---|---|")
    for length in (28, 512):
        for in_flight in (1, 2):
            device = Device(in_flight, options.tokens_per_second)
            ours, theirs = socket.socketpair()
            asked = (ours, length, options.tokens, options.batches, in_flight)
            writer = multiprocessing.get_context("fork").Process(target=write, args=asked)
            writer.start()
            _serve(device, theirs, 1)  # type: ignore[arg-type]
            writer.join()
            print(f"| {length} | {in_flight} | {device.waited / (device.waited + device.computed):.1%} |", flush=True)


if __name__ == "__main__":
    main()
