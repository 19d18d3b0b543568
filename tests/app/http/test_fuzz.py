"""Random bodies: each is answered, and none with 500.

10,000 of them: `BERT_TEST_REQUESTS=10000 make test ARGS=tests/app/http/test_fuzz.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.app.process import PATIENCE, Process

PATHS = ["/fill-mask", "/next-sentence", "/sentiment", "/hf/fill-mask", "/hf/text-classification"]
PATHS += ["/predict", "/tokenize"]
JSON = {"Content-Type": "application/json"}
BODIES = int(os.environ.get("BERT_TEST_REQUESTS", "1400"))
AT_ONCE = 16

FIELDS = ["inputs", "parameters", "text", "text_pair", "top_k", "truncate", "targets", "options", "model", ""]
PIECES = [
    *(
        "the film was good",
        "[MASK]",
        "[mask]",
        "[CLS][SEP]",
        "##ing",
        " ",
        "\t\r\n",
        "\0",
        "\u202e",
        "\u0301",
        "😀",
        "中",
    ),
    *(
        "\ufeff",
        "\u200b",
        "\u2028",
        "\udc00",
        "\ud83d",
        "\x7f",
        "ﬁ",
        "ẞ",
        "a" * 300,
        "'; DROP TABLE",
        "<script>",
        "\\",
    ),
]
NUMBERS = [0, 1, -1, 5, 100, 101, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")]


def text(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(PIECES[:2])
    joint = rng.choice(["", " "])
    return joint.join(rng.choice(PIECES) for _ in range(rng.choice([0, 1, 2, 3, 8, 80])))


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind < 2:
        return text(rng)
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice([None, True, False])
    if kind == 5:
        return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(4))]


def request(rng: random.Random, path: str) -> Any:
    """What a caller could mean, or nearly."""

    def given() -> Any:
        if path.endswith("fill-mask"):
            return text(rng) + rng.choice(["[MASK]", " [MASK] ", ""])
        pair = {"text": text(rng), "text_pair": text(rng)}
        return pair if path == "/next-sentence" else rng.choice([text(rng), pair])

    made: dict[str, Any] = {"inputs": rng.choice([given(), [given() for _ in range(rng.randrange(5))]])}
    parameters = {
        "truncate": rng.choice([True, True, False, 1]),
        "top_k": rng.choice([1, 2, 3, 4, 5, 100, *NUMBERS]),
        "targets": [rng.choice(["good", "bad", text(rng)]) for _ in range(rng.randrange(3))],
    }
    chosen = rng.sample(list(parameters), rng.randrange(3))
    if chosen and path not in ("/predict", "/tokenize"):
        made["parameters"] = {name: parameters[name] for name in chosen}
    if rng.random() < 0.2:
        made[rng.choice(FIELDS)] = value(rng)
    return made


def body(rng: random.Random, path: str) -> bytes:
    """JSON, often damaged."""
    content = request(rng, path) if rng.random() < 0.7 else value(rng)
    raw = json.dumps(content, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    damaged = bytearray(raw)
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        at = rng.randrange(len(damaged) + 1)
        damaged[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(damaged[: rng.randrange(len(damaged) + 1)] if rng.random() < 0.05 else damaged)


@pytest.mark.parametrize("path", PATHS)
async def test_every_body_is_answered(service: Process, path: str) -> None:
    rng = random.Random(path)
    bodies = [body(rng, path) for _ in range(BODIES // len(PATHS))]
    statuses: Counter[int] = Counter()

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE) as client:
            while bodies:
                sent = bodies.pop()
                answer = await client.post(path, content=sent, headers=JSON)
                statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    answer.json()
                    continue
                assert answer.status_code in (400, 413, 422), (sent[:500], answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                problem = answer.json()
                assert problem["status"] == answer.status_code
                assert problem["request_id"] == answer.headers["x-request-id"]

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    assert sum(statuses.values()) == BODIES // len(PATHS)
    assert set(statuses) >= {200, 400, 422}  # it reaches the model, and all that stands before it
    assert statuses[200] > sum(statuses.values()) // 40
