"""What Prometheus reads."""

from __future__ import annotations

from app.observability.metrics import Metrics


def test_two_apps_do_not_share_counts() -> None:
    first, second = Metrics(), Metrics()
    first.refused()
    assert b"bert_requests_refused_total 1.0" in first.render()
    assert b"bert_requests_refused_total 0.0" in second.render()


def test_queue_depth_is_the_last_that_was_told() -> None:
    metrics = Metrics()
    metrics.queue(3, 30)
    metrics.queue(4, 40)
    text = metrics.render().decode()
    assert "bert_queue_requests 4.0" in text
    assert "bert_queue_tokens 40.0" in text


def test_everything_is_counted() -> None:
    metrics = Metrics()
    metrics.request("fill-mask", 200)
    metrics.latency("fill-mask", tokenize=0.001, queue=0.002, inference=0.003)
    metrics.batch(4, 100)
    metrics.expired()
    metrics.cancelled()
    text = metrics.render().decode()
    for line in (
        'bert_requests_total{status="200",task="fill-mask"} 1.0',
        'bert_request_seconds_sum{stage="queue",task="fill-mask"} 0.002',
        "bert_batch_size_sum 4.0",
        "bert_batch_tokens_sum 100.0",
        "bert_requests_expired_total 1.0",
        "bert_requests_cancelled_total 1.0",
    ):
        assert line in text


def test_readiness_is_a_metric() -> None:
    metrics = Metrics()
    seen = []
    for ready in (True, False):
        seen.append(metrics.render().decode())
        metrics.ready(ready=ready)
    assert "bert_ready 0.0" in seen[0]
    assert "bert_ready 1.0" in seen[1]
    assert "bert_ready 0.0" in metrics.render().decode()
