"""The cost of Ray Serve's proxies: `.venv-cluster/bin/python -m benchmarks.cluster.ray_proxy --rounds 2`.

The contestants are `bert-serve`, and one replica of the same service behind Ray's Python proxy or behind its HAProxy.
They run one after the other on the same cores, which wrk shares with them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks import wrk

TIMEOUT = 180.0
"""Seconds within which a server must be ready, and must end."""
SENTENCE = "A film that is as long as it is good, and far better than the book that it was made from, they said."
CONTESTANTS = ("bert-serve", "Ray, HAProxy", "Ray, Python proxy")


def serve_with_ray(port: int) -> None:
    """Serve on a port with Ray until the standard input ends."""
    import ray
    from ray import serve

    from app.cluster.ray_serve import BertService

    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    quiet = {"enable_access_log": False}
    serve.run(BertService.options(num_replicas=1, logging_config=quiet).bind(), route_prefix="/")
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


@contextmanager
def running(contestant: str) -> Iterator[str]:
    """The address of a contestant that answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environ = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
    environ["RAY_worker_niceness"] = "0"  # 15 by default, behind everything else on the machine
    command = [sys.executable, "-m", "app", "--port", str(port), "--host", "127.0.0.1"]
    if contestant != "bert-serve":
        command = [sys.executable, "-m", "benchmarks.cluster.ray_proxy", "--serve", str(port)]
        environ["RAY_SERVE_ENABLE_HA_PROXY"] = str(int("HAProxy" in contestant))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
    url = f"http://127.0.0.1:{port}/sentiment"
    try:
        end = time.monotonic() + TIMEOUT
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{contestant} does not answer")
            time.sleep(0.2)
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if contestant == "bert-serve":
            process.terminate()
        process.wait(TIMEOUT)


def _answers(url: str) -> bool:
    try:
        return httpx.post(url, json={"inputs": SENTENCE}, timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--serve", type=int, help="internal: serve with Ray on this port")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_with_ray(arguments.serve)
    for _ in range(arguments.rounds):
        for contestant in CONTESTANTS:
            with running(contestant) as url:
                for connections, inputs in ((1, 1), (64, 1), (8, 32)):
                    body = json.dumps({"inputs": [SENTENCE] * inputs if inputs > 1 else SENTENCE}).encode()
                    wrk.measure(url, [body], seconds=1, connections=connections)
                    report = wrk.measure(url, [body], seconds=arguments.seconds, connections=connections, inputs=inputs)
                    print(
                        f"{contestant:18} {connections:3} connections, {inputs:2} sentences each: {report}", flush=True
                    )
    return None


if __name__ == "__main__":
    main()
