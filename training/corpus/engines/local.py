"""Shards made on several cores, in processes of their own."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path

import tokenizers

from model.tokenizer import Tokenizer
from training.corpus.pieces import Piece
from training.corpus.sentences import SentenceEncoder
from training.corpus.shards import Shard, make_shard
from training.errors import CorpusError

SMALL = 1_000_000
"""Characters of text that are prepared sooner than worker processes start."""


def shards_in_workers(
    work: Iterator[Piece], workers: int, tokenizer: Tokenizer, corpus: Path
) -> Iterator[tuple[Piece, Shard]]:
    """Shards as they are made; at most two pieces per worker are in memory.

    Raises:
        CorpusError: a worker died.
    """
    first = list(itertools.islice(work, 2 * workers))
    alone = workers == 1 or sum(len(text) for piece in first for text in piece.texts) < SMALL
    work = itertools.chain(first, work)
    del first  # or its pieces would stay in memory to the end
    if alone:
        encoder = SentenceEncoder(tokenizer)
        yield from ((piece, make_shard(encoder, corpus, piece)) for piece in work)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (tokenizer.to_json(), corpus))
    running: dict[Future[Shard], Piece] = {}
    try:
        for piece in work:
            running[pool.submit(_work, piece)] = piece
            if len(running) >= 2 * workers:
                yield from _completed(running)
        while running:
            yield from _completed(running)
    except BrokenProcessPool as error:
        remedy = "run prepare again, it continues"
        raise CorpusError(f"a worker died, perhaps of too little memory; {remedy}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _completed(running: dict[Future[Shard], Piece]) -> list[tuple[Piece, Shard]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    return [(running.pop(future), future.result()) for future in done]


# --- in the worker process ----------------------------------------------------------------------------------

_worker: tuple[SentenceEncoder, Path]
"""Set when a worker process starts."""


def _start_worker(tokenizer: str, corpus: Path) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; the parent decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = SentenceEncoder(Tokenizer(tokenizers.Tokenizer.from_str(tokenizer))), corpus


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(piece: Piece) -> Shard:
    return make_shard(*_worker, piece)
