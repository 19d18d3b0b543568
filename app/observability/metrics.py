"""What Prometheus sees. One registry per app, so two apps in one process do not share counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """Counters and histograms; an `Observer` of the batcher."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "bert_requests", "Requests by task and HTTP status.", ["task", "status"], registry=registry
        )
        self._seconds = Histogram(
            "bert_request_seconds",
            "Time of an answered request by task and stage.",
            ["task", "stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batch_items = Histogram("bert_batch_size", "Inputs in one batch.", buckets=_COUNTS, registry=registry)
        self._batch_tokens = Histogram("bert_batch_tokens", "Tokens in one batch.", buckets=_TOKENS, registry=registry)
        self._refused = Counter(
            "bert_requests_refused",
            "Requests refused with 429: the queue was full or too long, or too many bytes were being uploaded.",
            registry=registry,
        )
        self._expired = Counter(
            "bert_requests_expired",
            "Requests whose deadline passed, or would have at the measured speed.",
            registry=registry,
        )
        self._cancelled = Counter(
            "bert_requests_cancelled", "Requests abandoned by their caller before compute.", registry=registry
        )
        self._reloads = Counter(
            "bert_reloads", "Loads of checkpoints while serving, by result.", ["result"], registry=registry
        )
        for result in ("ok", "failed"):
            self._reloads.labels(result)
        self._queue_requests = Gauge(
            "bert_queue_requests", "Accepted requests that are not answered yet.", registry=registry
        )
        self._queue_tokens = Gauge("bert_queue_tokens", "Tokens that wait for a batch.", registry=registry)

        self._connections = Gauge("bert_connections", "Connections that are open.", registry=registry)
        self._start_time = Gauge(
            "bert_start_time_seconds", "When the service started, in seconds since 1970.", registry=registry
        )
        self._ready = Gauge(
            "bert_ready",
            "1 if the service can answer: loaded, alive, and neither stalled nor draining.",
            registry=registry,
        )

    def started(self) -> None:
        """The process has started."""
        self._start_time.set_to_current_time()

    def connections(self, count: int) -> None:
        """So many are open."""
        self._connections.set(count)

    def ready(self, *, ready: bool) -> None:
        """Whether this process can answer."""
        self._ready.set(ready)

    def queue(self, requests: int, tokens: int) -> None:
        """A request came or went."""
        self._queue_requests.set(requests)
        self._queue_tokens.set(tokens)

    def request(self, task: str, status: int) -> None:
        """One response was sent."""
        self._requests.labels(task, str(status)).inc()

    def latency(self, task: str, *, tokenize: float, queue: float, inference: float) -> None:
        """Seconds of one answered request."""
        self._seconds.labels(task, "tokenize").observe(tokenize)
        self._seconds.labels(task, "queue").observe(queue)
        self._seconds.labels(task, "inference").observe(inference)

    def batch(self, items: int, tokens: int) -> None:
        """One batch was computed."""
        self._batch_items.observe(items)
        self._batch_tokens.observe(tokens)

    def refused(self) -> None:
        """A request got 429."""
        self._refused.inc()

    def expired(self) -> None:
        """A request got 504."""
        self._expired.inc()

    def cancelled(self) -> None:
        """A caller was gone before compute."""
        self._cancelled.inc()

    def reloaded(self, *, ok: bool) -> None:
        """Checkpoints were loaded anew, or could not be."""
        self._reloads.labels("ok" if ok else "failed").inc()

    def render(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)
