"""A service around a backend without tensors, in this process or on a port; and one with tiny networks."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from app.batching.lifecycle import Lifecycle
from app.http.application import Application, create_app
from app.inference.contract import Backend, Head, ServedModel
from app.server.protocol import BoundedProtocol
from app.settings import Settings
from app.tasks import TASKS
from app.tasks.task import Task
from model import BertConfig, Tokenizer
from tests.app.backends import PATIENCE, FakeBackend
from tests.app.process import Process, running


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    """A fake with its gate open: fill-mask and next-sentence on one encoder, sentiment on the other."""
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=2,
        num_attention_heads=1,
        max_position_embeddings=64,
        id2label={0: "NEGATIVE", 1: "POSITIVE"},
    )
    both = (Head.WORDS, Head.NEXT_SENTENCE)
    fake = FakeBackend(
        {
            "pretrained": ServedModel("fake-pretrained", both, config, tokenizer, 1, "00"),
            "sentiment": ServedModel("fake-sentiment", (Head.LABELS,), config, tokenizer, 1, "ff"),
        }
    )
    fake.gate.set()
    fake.may_load.set()
    return fake


@pytest.fixture(scope="session")
def checkpoints(pretrained: Path, sentiment: Path) -> dict[str, str]:
    """The environment; set BERT_PRETRAINED and BERT_SENTIMENT to test other weights."""
    tiny = {"BERT_PRETRAINED": str(pretrained), "BERT_SENTIMENT": str(sentiment)}
    return tiny | {name: os.environ[name] for name in tiny if name in os.environ}


@pytest.fixture(scope="session")
def service(checkpoints: dict[str, str]) -> Iterator[Process]:
    """A `bert-serve` process, for tests that leave it as it is. Its deadline is far off, because a machine may stop for
    a while."""
    with running(checkpoints | {"BERT_THREADS": "2", "BERT_REQUEST_TIMEOUT_MS": "600000"}) as process:
        process.until_ready()
        yield process


@dataclass
class Service:
    """An app in its lifespan, and a client of it."""

    app: Application
    client: httpx.AsyncClient

    @property
    def lifecycle(self) -> Lifecycle:
        return self.app.service.lifecycle

    async def settled(self) -> None:
        """Wait until loading has ended."""
        async with asyncio.timeout(PATIENCE):
            await self.lifecycle.startup_finished.wait()

    async def queued(self, requests: int) -> None:
        """Wait until so many requests are accepted and unanswered."""
        async with asyncio.timeout(PATIENCE):
            while self.lifecycle.unanswered_requests != requests:  # noqa: ASYNC110 (an event only for tests)
                await asyncio.sleep(0.002)

    async def held(self, inputs: Any = "good") -> asyncio.Task[httpx.Response]:
        """A request to /sentiment in a batch that ends when the fake backend's gate opens."""
        backend: Any = self.lifecycle.engine.backend
        backend.gate.clear()
        asked = asyncio.create_task(self.client.post("/sentiment", json={"inputs": inputs}))
        await backend.has_entered()
        return asked

    async def metric(self, name: str) -> float:
        """The value of one line of /metrics."""
        text = (await self.client.get("/metrics")).text
        return float(next(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name + " ")))


Serve = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def serve(backend: FakeBackend) -> Serve:
    """Serve a backend (the fake one) with some settings, loaded unless its loading is held."""

    @asynccontextmanager
    async def start(
        computer: Backend = backend, tasks: Sequence[Task] = TASKS, **settings: object
    ) -> AsyncIterator[Service]:
        app = create_app(Settings.model_validate(settings), computer, tasks=tasks, serves_while_loading=True)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://t") as c,
        ):
            service = Service(app, c)
            if backend.may_load.is_set():
                await service.settled()
            try:
                yield service
            finally:
                backend.gate.set()
                backend.may_load.set()

    return start


@pytest.fixture
def url(backend: FakeBackend, request: pytest.FixtureRequest) -> Iterator[str]:
    """The fake backend on a real port; its settings are the fixture's indirect parameter."""
    settings = Settings.model_validate(getattr(request, "param", {}))
    app = create_app(settings, backend)
    quiet = {"access_log": False, "log_config": None}
    config = uvicorn.Config(app, http=BoundedProtocol, timeout_graceful_shutdown=1, **quiet)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listening],), name="uvicorn")
        thread.start()
        try:
            _wait_until_ready(address)
            yield address
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def _wait_until_ready(address: str) -> None:
    end = time.monotonic() + PATIENCE
    while httpx.get(address + "/health/ready", timeout=PATIENCE).status_code != 200:
        assert time.monotonic() < end
