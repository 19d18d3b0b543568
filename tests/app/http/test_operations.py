"""Health, info and metrics."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from app.batching.throughput import ThroughputPolicy
from app.errors import BackendDiedError
from app.inference.contract import BackendConfig
from tests.app.backends import ThreadBackend


async def test_liveness_and_readiness_differ_while_loading(serve: Any, backend: Any) -> None:
    backend.may_load.clear()
    async with serve() as service:
        live, ready = await service.client.get("/health/live"), await service.client.get("/health/ready")
        assert (live.status_code, ready.status_code) == (200, 503)
        assert (ready.json()["code"], ready.headers["retry-after"]) == ("loading", "1")
        task = await service.client.post("/sentiment", json={"inputs": "good"})
        assert (task.status_code, task.json()["code"]) == (503, "loading")
        assert await service.metric("bert_ready") == 0
        backend.may_load.set()
        await service.settled()
        assert (await service.client.get("/health/ready")).json() == {"status": "ready"}
        assert await service.metric("bert_ready") == 1


async def test_health_is_red_after_the_backend_died(serve: Any, backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serve() as service:
        backend.fault = lambda _: BackendDiedError("killed")
        stranded = await service.client.post("/sentiment", json={"inputs": "good"})
        assert (stranded.status_code, stranded.json()["code"]) == (503, "broken")
        for path in ("/health/live", "/health/ready"):
            answer = await service.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "broken")
        assert isinstance(service.lifecycle.failure, BackendDiedError)
        assert "no further batch can succeed: killed" in caplog.messages
        assert await service.metric("bert_ready") == 0


async def test_info_has_models_device_and_limits(serve: Any, pretrained: Any, sentiment: Any) -> None:
    backend = ThreadBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="float32", threads=1))
    async with serve(backend) as service:
        info = (await service.client.get("/info")).json()
    assert (info["status"], info["device"], info["dtype"], info["threads"]) == ("ready", "cpu", "float32", 1)
    speed = backend.info.tokens_per_second
    assert info["tokens_per_second"] == round(speed) > 0
    assert info["limits"]["max_batch_tokens"] == ThroughputPolicy().batch_tokens(speed, backend.info.max_useful_tokens)
    first, second = info["models"]
    assert (first["name"], first["tasks"]) == ("tiny-pretrained", ["fill-mask", "next-sentence"])
    assert (second["layers"], second["hidden_size"], second["vocab_size"]) == (2, 32, 76)
    assert second["labels"] == ["NEGATIVE", "POSITIVE"]
    assert first["problem_type"] is second["problem_type"] is None
    files = [directory / "model.safetensors" for directory in (pretrained, sentiment)]
    assert [first["sha256"], second["sha256"]] == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert str(pretrained) not in str(info)


async def test_info_has_the_problem_type_of_a_classifier(serve: Any, backend: Any) -> None:
    served = backend.models["sentiment"]
    backend.models["sentiment"] = replace(served, config=served.config.replace(problem_type="regression"))
    async with serve() as service:
        models = (await service.client.get("/info")).json()["models"]
    assert [model["problem_type"] for model in models] == [None, "regression"]


async def test_metrics_are_text_for_prometheus(serve: Any) -> None:
    async with serve() as service:
        await service.client.post("/sentiment", json={"inputs": ["good", "bad"]})
        answer = await service.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert await service.metric("bert_batch_size_sum") == 2
        assert await service.metric("bert_batch_tokens_sum") == 6
        assert await service.metric('bert_request_seconds_count{stage="inference",task="sentiment"}') == 1
        assert await service.metric("bert_queue_tokens") == 0
        service.lifecycle.engine.throughput.tokens_per_second = 1234.0
        assert await service.metric("bert_tokens_per_second") == 1234


@pytest.mark.parametrize(("given", "status"), [(None, 401), ("Bearer guess", 401), ("Bearer the-key", 200)])
async def test_metrics_can_be_put_behind_the_key(serve: Any, given: str | None, status: int) -> None:
    async with serve(metrics="key", api_keys="the-key") as service:
        answer = await service.client.get("/metrics", headers={"Authorization": given} if given else {})
        assert (await service.client.get("/info")).status_code == 200
    assert answer.status_code == status


async def test_metrics_can_be_switched_off(serve: Any) -> None:
    async with serve(metrics="off") as service:
        assert (await service.client.get("/metrics")).status_code == 404
        assert "/metrics" not in (await service.client.get("/openapi.json")).json()["paths"]
