"""The service on a Ray cluster: each replica is the whole service, with its own queue, engine and processes.

Ray's proxy reads HTTP and chooses a replica; batches form within the replica. Settings are the environment variables of
`bert-serve`, on each node or in `runtime_env`. BERT_HOST, BERT_PORT, BERT_KEEP_ALIVE_SECONDS, BERT_CONNECTION_SECONDS,
BERT_FORWARDED_ALLOW_IPS and BERT_DRAIN_SECONDS have no effect, because Ray listens and drains.
"""

from __future__ import annotations

import logging.config
import os
import time
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingContext

from app.http.application import create_app
from app.http.auth import announce
from app.inference.environment import set_defaults
from app.observability.log_config import log_config
from app.server import file_limits
from app.settings import Settings

QUEUED_SECONDS = "queued_seconds"
"""Metric that a replica reports to Ray's autoscaler: seconds that its waiting work takes at its measured speed."""
BUSY = "busy"
"""Metric: share of time in which a replica's inference processes compute."""
LAG = "lag"
"""Metric: seconds by which a replica's event loop is late. It grows instead of the queue if HTTP is the bottleneck."""
TARGET_QUEUED_SECONDS = 0.25
"""Seconds of waiting work per replica that the autoscaler aims at: two to three batches."""
TARGET_BUSY = 0.7
"""Upper bound on the share of time in which a replica's processes compute. Below it next to nothing waits (see
benchmarks/cluster/replicas.py), so `QUEUED_SECONDS` alone would remove replicas until requests wait."""
TARGET_LAG = 0.005
"""Upper bound on the lag of a replica's event loop, in seconds."""


def by_queued_work(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Ray's autoscaling policy: the number of replicas that brings each to at most `TARGET_QUEUED_SECONDS`,
    `TARGET_BUSY` and `TARGET_LAG`.

    Ray applies the delays, factors and bounds of `autoscaling_config`.
    """
    reported = context.aggregated_metrics or {}
    targets = {QUEUED_SECONDS: TARGET_QUEUED_SECONDS, BUSY: TARGET_BUSY, LAG: TARGET_LAG}
    return max(sum((reported.get(name) or {}).values()) / target for name, target in targets.items()), {}


@serve.deployment(
    max_ongoing_requests=4096,  # Ray's default of 5 leaves nothing to batch
    max_queued_requests=-1,  # the service refuses by tokens
    graceful_shutdown_timeout_s=60,  # more than BERT_REQUEST_TIMEOUT_MS (30 s) and the last batch (10 s)
    health_check_period_s=5,
    health_check_timeout_s=30,
    max_surge_percent=100,  # new replicas start before the old ones stop
    ray_actor_options={"num_cpus": 2},
)
@serve.ingress()
class BertService:
    """One replica. Its threads are the CPUs that Ray has assigned to it, unless BERT_THREADS is set."""

    def __init__(self) -> None:
        set_defaults(os.environ)
        file_limits.raise_limit()
        settings = Settings.read(os.environ)
        logging.config.dictConfig(log_config(settings.log_format, settings.log_level))
        announce(settings, os.environ)
        assigned = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        self._settings = settings.model_copy(update={"threads": settings.threads or max(int(assigned), 1)})
        self._user_config: Any = None
        self._is_configured = False
        self._seen = (time.monotonic(), 0.0)
        """Time of Ray's last request for the load, and the seconds that the processes had computed by then."""

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The app; its start-up ends once the models are ready."""
        app = create_app(self._settings)
        self._lifecycle = app.service.lifecycle
        return app

    async def check_health(self) -> None:
        """Raise once no batch can succeed any more, so that Ray replaces the replica."""
        if self._lifecycle.failure is not None:
            raise RuntimeError(f"no batch can succeed any more: {self._lifecycle.failure}")

    async def reconfigure(self, user_config: Any) -> None:
        """Load the checkpoints again when `user_config` changes, for instance to {"weights": "2"}.

        If the new ones cannot be served, the replica logs the reason and goes on answering with the old ones.
        """
        if self._is_configured and user_config != self._user_config:
            await self._lifecycle.reload()
        self._user_config, self._is_configured = user_config, True

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Seconds of waiting work, how busy the replica was since the last call, and the lag of its event loop."""
        backend = self._lifecycle.engine.backend
        speed = self._lifecycle.engine.throughput.tokens_per_second
        now = time.monotonic(), sum(computing for computing, _ in backend.process_seconds().values())
        (since, before), self._seen = self._seen, now
        seconds, computed = self._seen[0] - since, self._seen[1] - before  # less than 0 after a process was replaced
        if not (speed and seconds > 0):
            return {QUEUED_SECONDS: 0.0, BUSY: 0.0, LAG: 0.0}
        busy = max(computed / seconds / backend.info.processes, 0.0)
        return {QUEUED_SECONDS: self._lifecycle.queued_tokens / speed, BUSY: busy, LAG: self._lifecycle.event_loop_lag}


app = BertService.bind()  # type: ignore[attr-defined]  # the decorators make it a Deployment
