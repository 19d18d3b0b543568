"""Makes shards on the cores of this machine, in worker processes."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path

from model.inference.cpu_features import available_cpus
from model.tokenizer import Tokenizer
from training.corpus.encode import ShardEncoder
from training.corpus.shards import Shard, ShardInput, make_in_worker, make_shard
from training.errors import CorpusError
from training.runtime.signals import ignore_stop_signals

SMALL_CHARACTERS = 1_000_000
"""Text of fewer characters is encoded in less time than worker processes take to start."""


def make_shards(inputs: Iterator[ShardInput], tokenizer: Tokenizer, store: Path) -> Iterator[tuple[ShardInput, Shard]]:
    """Make shards on all cores, in the order of their inputs. At most two inputs per worker are in memory.

    Raises:
        CorpusError: a worker process died.
    """
    workers = available_cpus()
    first = list(itertools.islice(inputs, 2 * workers))
    characters = sum(len(document.text) for shard_input in first for document in shard_input.documents)
    inputs = itertools.chain(first, inputs)
    del first  # otherwise its text would stay in memory to the end
    if workers == 1 or characters < SMALL_CHARACTERS:
        encoder = ShardEncoder(tokenizer)
        yield from ((shard_input, make_shard(encoder, store, shard_input)) for shard_input in inputs)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker)
    vocabulary = tokenizer.to_json()
    running: deque[tuple[ShardInput, Future[Shard]]] = deque()
    try:
        for shard_input in inputs:
            running.append((shard_input, pool.submit(make_in_worker, vocabulary, store, shard_input)))
            if len(running) == 2 * workers:
                yield _next(running)
        while running:
            yield _next(running)
    except BrokenProcessPool as error:
        raise CorpusError(
            "a worker process died, perhaps because memory ran out; run prepare again, it continues"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _next(running: deque[tuple[ShardInput, Future[Shard]]]) -> tuple[ShardInput, Shard]:
    shard_input, shard = running.popleft()
    return shard_input, shard.result()


# --- in the worker process -----------------------------------------------------------------------------------------


def _start_worker() -> None:
    ignore_stop_signals()
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent was killed, because no more work would come."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
