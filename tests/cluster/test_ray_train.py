"""`training.cluster`: two ranks that Ray Train starts on two nodes have the curve of one process, killed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import processes
from tests.training.commands import ROOT
from tests.training.conftest import MakeRecipe, data, make_recipe_in, prepared, recipe_file  # noqa: F401 (fixtures)
from tests.training.loop.test_distributed import EVERY_STEP, SETTINGS, alone, arguments, assert_same_curve  # noqa: F401
from training.pipeline import Pipeline
from training.recipe import Recipe

pytest.importorskip("ray", reason="needs the extra `cluster`: run make test-cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

PATIENCE = 200
"""Seconds until a test is given up."""


def ranks(recipe: Recipe) -> list[int]:
    """Process ids of the ranks of a run."""
    return [pid for pid, line in processes().items() if " training pretrain " in line and str(recipe.run) in line]


def test_rank_that_dies_is_started_again_and_the_curve_is_that_of_one_process(
    cluster: Any,
    make_recipe_in: MakeRecipe,  # noqa: F811
    recipe_file: Path,  # noqa: F811
    tmp_path: Path,
    alone: Recipe,  # noqa: F811
) -> None:
    recipe, output, end = make_recipe_in(tmp_path / "run", *SETTINGS), tmp_path / "output", time.monotonic() + PATIENCE
    command = [sys.executable, "-m", "training.cluster", "2", *arguments(recipe, recipe_file, EVERY_STEP)]
    environment = os.environ | {"RAY_ADDRESS": cluster.address, "HOME": str(tmp_path)}
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    while not list(Pipeline(recipe).pretrain.folder.glob("state-*.pt")):
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.01)
    os.kill(ranks(recipe)[1], signal.SIGKILL)
    assert process.wait(PATIENCE) == 0, output.read_text()
    assert "resuming at step" in output.read_text()
    assert not ranks(recipe)
    assert_same_curve(recipe, alone)
