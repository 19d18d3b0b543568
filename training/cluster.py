"""python -m training.cluster PROCESSES COMMAND RECIPE [key=value ...]

`torchrun` for a Ray cluster (extra `cluster`): Ray Train chooses the nodes, and starts all ranks again if one fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, collective
from ray.train.torch import TorchConfig, TorchTrainer

MAX_RESTARTS = 3


def launch(processes: int, arguments: Sequence[str]) -> None:
    """Run `bert-train ARGUMENTS` as `processes` ranks, one per GPU if the cluster has any, until it is
    finished.

    Raises:
        TrainingFailedError: a rank failed `MAX_RESTARTS` + 1 times.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(ignore_reinit_error=True)
    gpu = "GPU" in ray.cluster_resources()
    placement = "PACK" if gpu else "SPREAD"  # without GPUs, each rank takes the cores of its node
    TorchTrainer(
        _run_rank,
        train_loop_config={"arguments": arguments, "folder": Path.cwd()},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=processes, use_gpu=gpu, placement_strategy=placement),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=MAX_RESTARTS)),
    ).fit()


def _run_rank(config: dict[str, Any]) -> None:
    """Run the command in another process, with the environment of `torchrun`, which Ray has set. Ray calls this in a
    thread, where Python cannot handle signals."""
    dist.destroy_process_group()  # Ray's group; the command makes another at the same address
    collective.barrier()
    command = [sys.executable, "-m", "training", *config["arguments"]]
    subprocess.run(command, cwd=config["folder"], check=True)  # noqa: S603 (the caller's own arguments)


if __name__ == "__main__":
    if len(sys.argv) < 4 or not sys.argv[1].lstrip("0").isdecimal():
        sys.exit(__doc__)
    try:
        launch(int(sys.argv[1]), sys.argv[2:])
    except TrainingFailedError:
        sys.exit(f"error: a rank failed {MAX_RESTARTS + 1} times; its messages are above")
