"""A Ray cluster of two nodes on this machine. Needs the extra `cluster`, and no other load: see `make test-cluster`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RUN = f"cluster-test-{uuid.uuid4().hex}"
"""In the environment of every process of this run's cluster."""

ENVIRONMENT = {
    "CLUSTER_TEST_RUN": RUN,
    "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[2] / name) for name in ("", "client")),
    "RAY_AUTH_MODE": "disabled",  # or a token in the home folder would be asked for
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default, behind everything else on the machine
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # 5 by default, which other load makes too short
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}


def processes() -> dict[int, str]:
    """Ids and command lines of the cluster's processes."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if RUN.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two logical CPUs each, on any machine."""
    ray = pytest.importorskip("ray", reason="needs the extra `cluster`: run make test-cluster")
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    memory = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **memory})
    try:
        cluster.add_node(num_cpus=2, **memory)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
