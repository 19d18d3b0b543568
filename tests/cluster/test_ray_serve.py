"""The service on Ray Serve, with the shipped weights. The tests share one cluster and run in their order."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.app.process import running
from tests.cluster.conftest import processes

pytest.importorskip("ray", reason="needs the extra `cluster`: run make test-cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

SERVE_YAML = Path(__file__).parents[2] / "deploy" / "ray" / "serve.yaml"
PATIENCE = 150
"""Seconds until a test is given up."""
ENVIRONMENT = {"BERT_MAX_QUEUE_TOKENS": "16384", "BERT_DTYPE": "float32"}
QUESTIONS = {
    "/sentiment": {"inputs": ["a wonderful film", "dull and far too long", "it was what it was"]},
    "/fill-mask": {"inputs": "the capital of france is [MASK]."},
    "/next-sentence": {"inputs": {"text": "He opened the door.", "text_pair": "The room was dark."}},
}
LONG = {"inputs": ["a film that is as long as it is good, and far better than the book " * 6] * 16}
"""About 1,500 tokens."""


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.1)


class Service:
    """The application on the cluster, and what its callers saw."""

    def __init__(self, cluster: Any, port: int) -> None:
        self.cluster = cluster
        self.url = f"http://127.0.0.1:{port}"

    def deploy(self, **options: Any) -> None:
        """Deploy deploy/ray/serve.yaml with some options; returns once all replicas run that version."""
        from ray import serve
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        config = yaml.safe_load(SERVE_YAML.read_text())
        (application,) = config["applications"]
        application["runtime_env"]["env_vars"] |= ENVIRONMENT | options.pop("env", {})
        (deployment,) = application["deployments"]
        if "num_replicas" in options:
            del deployment["autoscaling_config"]
        deployment |= {"ray_actor_options": {"num_cpus": 1}} | options
        del config["http_options"], config["proxy_location"]  # they were given to `serve.start`
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))
        began, end = time.time(), time.monotonic() + PATIENCE
        while True:
            status = serve.status().applications["bert"]
            states = [deployment.status for deployment in status.deployments.values()]
            if time.time() - began > 3 and status.status == "RUNNING" and states == ["HEALTHY"]:
                return
            assert time.monotonic() < end, status
            time.sleep(0.2)

    def replicas(self, state: str = "RUNNING") -> int:
        """Number of replicas in a state."""
        from ray import serve

        (deployment,) = serve.status().applications["bert"].deployments.values()
        return deployment.replica_states.get(state, 0)

    def client(self, callers: int = 100) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=callers)
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE, limits=limits)

    async def metric(self, name: str) -> float:
        """A line of /metrics of one replica."""
        async with self.client() as client:
            lines = (await client.get("/metrics")).text.splitlines()
        return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + " ")))

    @asynccontextmanager
    async def load(self, callers: int, body: Any = QUESTIONS["/sentiment"]) -> AsyncIterator[Counter[int | str]]:
        """Callers that ask one request after the other; counts their statuses and broken connections."""
        seen: Counter[int | str] = Counter()
        ended = asyncio.Event()

        async def ask(client: httpx.AsyncClient) -> None:
            while not ended.is_set():
                try:
                    seen[(await client.post("/sentiment", json=body)).status_code] += 1
                except httpx.TransportError as error:
                    seen[type(error).__name__] += 1

        async with self.client(callers) as client:
            asking = [asyncio.create_task(ask(client)) for _ in range(callers)]
            try:
                yield seen
            finally:
                ended.set()
                await asyncio.gather(*asking)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The answers of `bert-serve`."""
    with running(ENVIRONMENT | {"BERT_THREADS": "1"}) as process:
        process.until_ready()
        return {path: httpx.post(process.url + path, json=body).json() for path, body in QUESTIONS.items()}


@pytest.fixture(scope="module")
def service(expected: Any, cluster: Any) -> Iterator[Service]:
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    service = Service(cluster, port)
    service.deploy(num_replicas=1)
    yield service
    serve.shutdown()


async def test_answers_are_those_of_bert_serve(service: Service, expected: dict[str, Any]) -> None:
    async with service.client() as client:
        for path, body in QUESTIONS.items():
            answer = (await client.post(path, json=body)).json()
            assert answer["model"] == expected[path]["model"]
            flat, wanted = str(answer["results"]), str(expected[path]["results"])
            assert flat == wanted or _scores(answer["results"]) == pytest.approx(_scores(expected[path]["results"]))


def _scores(results: Any) -> list[float]:
    if isinstance(results, dict):
        return [score for key, value in results.items() for score in ([value] if key == "score" else _scores(value))]
    return [score for value in results for score in _scores(value)] if isinstance(results, list) else []


async def test_replica_uses_the_cpus_that_ray_assigned(service: Service) -> None:
    async with service.client() as client:
        models = (await client.get("/info")).json()
    assert models["threads"] == 1


async def test_replica_gets_more_requests_at_a_time_than_rays_default_of_five(service: Service) -> None:
    """Or else there would be nothing to batch."""
    async with service.load(32, LONG), asyncio.timeout(PATIENCE):
        while await service.metric("bert_queue_requests") <= 5:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)


async def test_full_queue_is_refused_with_retry_after(service: Service) -> None:
    async with service.client(40) as client:
        answers = await asyncio.gather(*(client.post("/sentiment", json=LONG) for _ in range(40)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.json()["code"] for answer in refused} == {"queue_full"}


async def test_request_of_a_caller_that_hangs_up_is_cancelled(service: Service) -> None:
    before = await service.metric("bert_requests_cancelled_total")
    async with service.client() as client, asyncio.timeout(PATIENCE):
        while await service.metric("bert_requests_cancelled_total") == before:
            asking = [asyncio.create_task(client.post("/sentiment", json=LONG)) for _ in range(10)]
            await asyncio.sleep(0.1)  # they wait for 0.3 s
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def test_user_config_reloads_the_weights_in_place(service: Service) -> None:
    started = await service.metric("bert_start_time_seconds")
    await asyncio.to_thread(service.deploy, num_replicas=1, user_config={"weights": "2"})
    assert await service.metric('bert_reloads_total{result="ok"}') == 1
    assert await service.metric("bert_start_time_seconds") == started


async def test_waiting_work_adds_a_replica(service: Service) -> None:
    (application,) = yaml.safe_load(SERVE_YAML.read_text())["applications"]
    scaling = application["deployments"][0]["autoscaling_config"] | {
        "min_replicas": 1,
        "max_replicas": 2,
        "look_back_period_s": 2,
        "upscale_delay_s": 1,
    }
    await asyncio.to_thread(service.deploy, autoscaling_config=scaling, user_config={"weights": "2"})
    await until(lambda: service.replicas() == 1)
    async with service.load(16, LONG):
        await until(lambda: service.replicas() == 2)


async def test_new_version_loses_no_request(service: Service) -> None:
    await asyncio.to_thread(service.deploy, num_replicas=2)
    await until(lambda: service.replicas() == 2)
    async with service.load(8) as seen:
        await asyncio.sleep(2)
        await asyncio.to_thread(service.deploy, num_replicas=2, env={"BERT_LOG_LEVEL": "warning"})
        await until(lambda: service.replicas() == 2 and not service.replicas("STOPPING"))
        await asyncio.sleep(2)
    assert set(seen) == {200}


async def test_lost_node_loses_only_what_it_computed(service: Service) -> None:
    callers = 8
    (node,) = service.cluster.worker_nodes
    async with service.load(callers) as seen:
        await asyncio.sleep(2)
        await asyncio.to_thread(service.cluster.remove_node, node, False)
        removed = time.monotonic()
        await asyncio.sleep(10)
        lost, answered = seen.total() - seen[200], seen[200]
        await until(lambda: seen[200] > answered + 100)
        assert seen.total() - seen[200] == lost, (seen, time.monotonic() - removed)
    assert lost <= callers, seen
    await until(lambda: service.replicas() == 2)  # on the other node, which has two logical CPUs


def test_end_leaves_no_inference_process(service: Service) -> None:
    from ray import serve

    assert any("spawn_main" in line for line in processes().values())
    serve.shutdown()
    end = time.monotonic() + PATIENCE
    while any("spawn_main" in line for line in processes().values()):
        assert time.monotonic() < end
        time.sleep(0.2)
