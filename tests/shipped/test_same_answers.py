"""An answer does not depend on its neighbours: the same input alone, and among thousands of others.

In the precision that the service chooses by itself, bfloat16 where the processor computes it, and in int8.
All 10,000 requests: `BERT_TEST_REQUESTS=10000 make test ARGS=tests/shipped/test_same_answers.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks import texts
from tests.app.process import PATIENCE, Process, running

REQUESTS = int(os.environ.get("BERT_TEST_REQUESTS", "96"))
AT_ONCE = 48
UNIQUE = 18
"""Inputs of each task."""
TOLERANCE = 1e-4
"""A tenth of what is promised; without care, neighbours move scores by 3e-3."""

Result = dict[str, Any]


def words(rng: random.Random, sentences: list[str], most: int) -> list[str]:
    """One word up to hundreds: short ones are more frequent."""
    count = min(round(rng.lognormvariate(2.7, 1.1)) + 1, most)
    return " ".join(rng.choices(sentences, k=count // 3 + 1)).split()[:count]


def inputs(path: str, rng: random.Random) -> list[Any]:
    sentences = texts.generated(1000)
    made: list[Any] = []
    for _ in range(UNIQUE):
        text = words(rng, sentences, 300)
        if path == "/fill-mask":
            for at in rng.choices(range(len(text)), k=rng.choice([1, 1, 1, 3])):
                text[at] = "[MASK]"
        pair = {"text": " ".join(text), "text_pair": " ".join(words(rng, sentences, 100))}
        made.append(pair if path == "/next-sentence" else " ".join(text))
    return made


@pytest.fixture(scope="module", params=["auto", "int8"])
def service(request: pytest.FixtureRequest) -> Iterator[Process]:
    with running({"BERT_REQUEST_TIMEOUT_MS": "600000", "BERT_DTYPE": request.param}) as process:
        process.until_ready()
        yield process


async def ask(client: httpx.AsyncClient, path: str, given: list[Any]) -> list[Result]:
    answer = await client.post(path, json={"inputs": given, "parameters": {"truncate": True}})
    assert answer.status_code == 200, answer.text
    results: list[Result] = answer.json()["results"]
    return results


def rows(result: Result) -> list[list[tuple[str, float]]]:
    """What is predicted with which score, highest first: for each mask, or once."""
    predictions = [mask["predictions"] for mask in result["masks"]] if "masks" in result else [result["predictions"]]
    return [[(entry.get("label") or entry["token"], entry["score"]) for entry in row] for row in predictions]


def difference(alone: Result, among: Result) -> float:
    """Of scores, the largest; what leads must be the same, and so must all that is not a prediction."""
    worst = 0.0
    for one, other in zip(rows(alone), rows(among), strict=True):
        assert one[0][0] == other[0][0], (alone, among)
        known = dict(one)
        worst = max(worst, *(abs(score - known.get(what, one[-1][1])) for what, score in other))
    assert (alone["tokens"], alone["truncated"]) == (among["tokens"], among["truncated"])
    return worst


def batch_sizes(service: Process) -> tuple[float, float]:
    return service.metric("bert_batch_size_sum"), service.metric("bert_batch_size_count")


async def test_answers_are_the_same_alone_and_in_any_company(service: Process) -> None:
    rng = random.Random(0)
    paths = ["/fill-mask", "/next-sentence", "/sentiment"]
    unique = {path: inputs(path, rng) for path in paths}
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE) as client:
        alone = {path: [(await ask(client, path, [given]))[0] for given in unique[path]] for path in paths}
    items, batches = batch_sizes(service)
    assert items == batches  # each was alone indeed
    worst, answered = 0.0, 0

    async def load() -> None:
        nonlocal worst, answered
        async with httpx.AsyncClient(base_url=service.url, timeout=600) as client:
            while answered < REQUESTS:
                answered += 1
                path = rng.choice(paths)
                chosen = rng.choices(range(UNIQUE), k=rng.choice([1, 1, 1, 1, 2, 5]))
                results = await ask(client, path, [unique[path][i] for i in chosen])
                for i, result in zip(chosen, results, strict=True):
                    worst = max(worst, difference(alone[path][i], result))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(load())
    all_items, all_batches = batch_sizes(service)
    company = (all_items - items) / (all_batches - batches)
    print(f"{answered} requests, {all_items - items:.0f} inputs in batches of {company:.1f}: {worst:.1e}")
    assert company > 8
    assert worst < TOLERANCE
