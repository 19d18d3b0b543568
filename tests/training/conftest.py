"""A recipe that trains a network of two layers in seconds, and its text."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.training.stages import made
from tests.training.texts import review, story
from training.pipeline import Pipeline
from training.recipe import Recipe, load_recipe
from training.runtime.distributed import DistContext

MakeRecipe = Callable[..., Recipe]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories.txt (a document per paragraph), reviews.jsonl and test.jsonl (text, label)."""
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    (folder / "stories.txt").write_text("\n\n".join(story(rng) for _ in range(120)))
    for name, count in (("reviews", 80), ("test", 20)):
        rows = [{"text": review(rng, good=i % 2 == 1), "label": i % 2} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


RECIPE = """
name = "tiny"
description = "Seconds, for tests."
micro_batch_tokens = 256

[tokenizer]
vocab_size = 200

[corpus]
sources = [{ name = "stories", path = "stories.txt" }]
heldout_fraction = 0.1

[model]
hidden_size = 16
num_hidden_layers = 2

[pretrain]
tokens = 12800
batch_tokens = 256

[pretrain.examples]
short_length = 32
long_length = 64

[finetune]
passes = 2
batch_tokens = 256
max_length = 48
dev_fraction = 0.2
bag_weight = 0
train = [{ name = "reviews", path = "reviews.jsonl", label = "label" }]
test = [{ name = "reviews", path = "test.jsonl", label = "label" }]
"""
"""50 steps of pretraining, and 32 of fine-tuning."""


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, recipe_file: Path, data: Path) -> Path:
    """A `run` folder with the tiny recipe's tokenizer and corpus."""
    run = tmp_path_factory.mktemp("prepared")
    recipe = load_recipe(str(recipe_file), [f"data={data}", f"run={run}"])
    assert made(recipe, "tokenizer")
    assert Pipeline(recipe).corpus.ensure(DistContext())
    return run


@pytest.fixture(scope="session")
def make_recipe_in(prepared: Path, recipe_file: Path, data: Path) -> MakeRecipe:
    """The tiny recipe with overrides, in a run folder that gets a copy of the prepared corpus."""

    def make(run: Path, *overrides: str) -> Recipe:
        shutil.copytree(prepared / "tiny", run / "tiny", symlinks=True)
        return load_recipe(str(recipe_file), [f"data={data}", f"run={run}", *overrides])

    return make


@pytest.fixture
def make_recipe(make_recipe_in: MakeRecipe, tmp_path: Path) -> MakeRecipe:
    """`make_recipe_in` with a run folder in `tmp_path`."""
    return partial(make_recipe_in, tmp_path / "run")


@pytest.fixture
def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without symbolic links, such as Google Drive or exFAT."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "symlink", refuse)


@pytest.fixture(scope="session", autouse=True)
def one_cpu_for_training() -> Iterator[None]:
    """Commands that run in this process use one thread too; see `one_thread`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.runtime.device.available_cpus", lambda: 1)
        patch.setattr("training.loop.trainer.TIMED_STEPS", 2)  # which tell enough of a tiny network
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread, because small tensors are fastest on one and other tests may run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
