"""Makes shards on a Ray cluster: the driver reads the text, and workers encode it and write to a shared folder."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from model.tokenizer import Tokenizer
from training.corpus.shards import Shard, ShardInput, make_in_worker
from training.errors import CorpusError

MAX_RETRIES = 3
"""Times that a shard is made again after its worker or node has died."""


def make_shards(inputs: Iterator[ShardInput], tokenizer: Tokenizer, store: Path) -> Iterator[tuple[ShardInput, Shard]]:
    """Make shards on all CPUs of the cluster (RAY_ADDRESS, or the one on this machine), in the order of their inputs.
    The inputs come back without their documents.

    Two inputs per CPU are in the cluster at a time, so the object store never spills text to disk. `store` has to be
    the same folder on all nodes.

    Raises:
        CorpusError: workers that made one shard died `MAX_RETRIES` + 1 times, or nodes write to different folders.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(make_in_worker)
    vocabulary = ray.put(tokenizer.to_json())
    limit = 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
    running: deque[tuple[ShardInput, Any]] = deque()
    try:
        for shard_input in inputs:
            made = task.remote(vocabulary, store.resolve(), shard_input)
            running.append((replace(shard_input, documents=[]), made))  # the object store has the text
            if len(running) == limit:
                yield _next(running, store)
        while running:
            yield _next(running, store)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
        raise CorpusError(f"the Ray cluster lost a shard ({error}); run prepare again, it continues") from error
    finally:
        for _, made in running:
            ray.cancel(made)


def _next(running: deque[tuple[ShardInput, Any]], store: Path) -> tuple[ShardInput, Shard]:
    shard_input, made = running.popleft()
    shard: Shard = ray.get(made)
    if not (store / shard.name).is_dir():
        raise CorpusError(f"{store} is another folder on some node of the Ray cluster: share it, or unset RAY_ADDRESS")
    return shard_input, shard
