"""Several ranks on CPUs: the curve of one process, on one node and on two with different folders, killed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.training.commands import ENVIRONMENT, PATIENCE, ROOT, environment_of, finish, start, until
from tests.training.conftest import MakeRecipe
from tests.training.one_cpu import one_cpu
from tests.training.stages import made, save_new_network
from training.loop.log import RunLog
from training.pipeline import Pipeline
from training.recipe import Recipe

SETTINGS = (
    *("pretrain.batch_tokens=2048", "pretrain.tokens=49152", "pretrain.dropout=0.1"),
    *("pretrain.learning_rate=0.01", "device=cpu"),
)
"""24 steps of eight micro-batches, over several passes."""

EVERY_STEP = "checkpoint_minutes=1e-9"

COMPILED_RANK = """
import sys
from dataclasses import replace
import model.bert, training.finetune.run, training.finetune.task
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from training.command import main
from training.examples.batches import ClassificationBatch

class Attention:
    def self_attention(self, qkv):
        return qkv.sum(1)
    def cross_attention(self, query, key_value):
        return query + key_value.sum(1).mean(0)

class Recorded(nn.parallel.DistributedDataParallel):
    def __init__(self, module, **settings):
        super().__init__(module, bucket_cap_mb=1, **settings)
        self.register_comm_hook(None, lambda _, bucket: events.append("reduce") or allreduce_hook(None, bucket))

def recorded(name):
    return lambda graph, _: make_boxed_func(lambda *inputs: events.append(name) or graph(*inputs))

events, nn.parallel.DistributedDataParallel = [], Recorded
backend = aot_autograd(fw_compiler=recorded("forward"), bw_compiler=recorded("backward"))
model.bert.attention_for = lambda *_: Attention()
training.finetune.task.DROPOUT = 0.0
ClassificationBatch.to = lambda batch, _: replace(batch, lengths=None)
training.finetune.run.maybe_compile = lambda loss, **_: loss.compile(backend=backend, fullgraph=True, dynamic=False)
assert main(sys.argv[1:]) == 0
after_forward = events[-events[::-1].index("forward") :]
assert "reduce" in after_forward[: -after_forward[::-1].index("backward")], after_forward
"""
"""Fine-tuning whose forward pass is compiled as one graph, as on a GPU, without what is compiled on a GPU only."""


@pytest.fixture(scope="module")
def alone(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A run of one process."""
    torch.set_num_threads(1)
    recipe = make_recipe_in(tmp_path_factory.mktemp("alone"), *SETTINGS)
    assert made(recipe, "pretrain")
    return recipe


def lines(recipe: Recipe, event: str) -> list[dict[str, Any]]:
    return [line for line in RunLog(recipe.folder / "pretrain" / "log.jsonl") if line["event"] == event]


def assert_same_curve(one: Recipe, other: Recipe) -> None:
    """Gradients of ranks are summed in another order than those of one process, so the last digits may differ."""
    curves = [[(line["step"], line["mlm_loss"]) for line in lines(recipe, "train")] for recipe in (one, other)]
    assert len(curves[0]) > 20
    for (step, first), (other_step, second) in zip(*curves, strict=True):
        assert (other_step, second) == (step, pytest.approx(first, abs=2e-3))
    assert curves[0][-1][1] < curves[0][0][1] - 0.2, "it learns"
    (first,), (second,) = (lines(recipe, "evaluation") for recipe in (one, other))
    assert second["stories"]["mlm_loss"] == pytest.approx(first["stories"]["mlm_loss"], abs=2e-3)


def arguments(recipe: Recipe, file: Path, *overrides: str) -> list[str]:
    return ["pretrain", str(file), f"data={recipe.data}", f"run={recipe.run}", *SETTINGS, *overrides]


def start_ranks(commands: list[list[str]], per_node: int | None = None) -> list[subprocess.Popen[str]]:
    """Ranks with the variables of a launcher, without its own process, which loads torch too."""
    ranks, port = [], free_port()
    for rank, command in enumerate(commands):
        with one_cpu(rank):
            ranks.append(start(*command, environment=environment_of(rank, len(commands), per_node, port)))
    return ranks


def test_two_ranks_of_one_node_have_the_curve_of_one_process(
    make_recipe: MakeRecipe, recipe_file: Path, alone: Recipe
) -> None:
    recipe = make_recipe(*SETTINGS)
    outcomes = [finish(rank) for rank in start_ranks([arguments(recipe, recipe_file)] * 2, per_node=2)]
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert_same_curve(recipe, alone)
    assert (recipe.folder / "pretrained" / "model.safetensors").is_file()


def test_two_nodes_killed_and_restarted_have_the_curve_of_one_process(
    make_recipe_in: MakeRecipe, recipe_file: Path, tmp_path: Path, alone: Recipe
) -> None:
    nodes = [make_recipe_in(tmp_path / name, *SETTINGS) for name in ("node-0", "node-1")]
    ranks = start_ranks([arguments(node, recipe_file, EVERY_STEP) for node in nodes])
    until(ranks[0], " 50%, ")
    os.killpg(ranks[1].pid, signal.SIGKILL)
    finish(ranks[1])
    status, _, errors = finish(ranks[0])
    assert status == 1
    assert "error: another rank ended or cannot be reached" in errors
    first, second = (Pipeline(node).pretrain.folder for node in nodes)
    assert list(first.glob("state-*.pt"))
    assert not list(second.glob("state-*.pt")), "rank 0 saves, to its own disk"

    outcomes = [finish(rank) for rank in start_ranks([arguments(node, recipe_file) for node in nodes])]
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert "resuming at step 1" in outcomes[0][2]
    assert "resuming at step 1" in outcomes[1][2]
    assert_same_curve(nodes[0], alone)
    assert not (second / "log.jsonl").exists()


def test_ranks_with_another_recipe_stop_with_an_error(
    make_recipe_in: MakeRecipe, recipe_file: Path, tmp_path: Path
) -> None:
    nodes = [make_recipe_in(tmp_path / name, *SETTINGS) for name in ("node-0", "node-1")]
    commands = [arguments(node, recipe_file) for node in nodes]
    commands[1].append("pretrain.dropout=0.2")
    outcomes = [finish(rank) for rank in start_ranks(commands)]
    for rank, (status, _, errors) in enumerate(outcomes):
        assert status == 1, errors
        assert f"rank {1 - rank} has another recipe, text or vocabulary than rank {rank}" in errors
        assert "Traceback" not in errors


def test_ranks_reduce_gradients_before_the_backward_pass_ends(make_recipe: MakeRecipe, recipe_file: Path) -> None:
    """DistributedDataParallel splits the graph of a loss at its buckets only if no loss ran before it was wrapped."""
    changes = ("model.hidden_size=512", "model.num_hidden_layers=1", "finetune.batch_tokens=512", "finetune.passes=0.5")
    recipe, port = save_new_network(make_recipe(*changes)), free_port()
    command = [sys.executable, "-c", COMPILED_RANK, "finetune", *arguments(recipe, recipe_file)[1:4], *changes]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT | environment_of(rank, 2, 2, port), stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
