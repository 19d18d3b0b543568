"""The script for a lent GPU machine, rehearsed from texts to exported checkpoints on a few texts."""

from __future__ import annotations

import json
import lzma
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model import load_checkpoint
from tests.training.texts import review, story
from training.recipe import load_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"
PATIENCE = 600  # seconds, for a machine that is busy
SECONDS = ("pretrain.tokens=2048", "finetune.epochs=0.2", "finetune.seeds=[1]")

needs_tools = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("bash", "tar", "xz", "split", "sha256sum", "timeout")),
    reason="needs GNU tools and xz",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every file that the recipe names, with stories or reviews."""
    recipe = load_recipe("gpu")
    rng = random.Random(0)
    sources = [*recipe.finetune.train, *recipe.finetune.test, *recipe.corpus.sources, *recipe.corpus.heldout]
    for name in {source.path for source in sources if source.path}:
        rows = [
            {"label": i % 2, "movie": i, "source": "shop", "title": "A review", "text": review(rng, i % 2 == 1)}
            for i in range(40)
        ]
        if name.startswith("pretrain/"):
            rows = [{"text": story(rng)} for _ in range(15)]
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(file, "wt") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path / "data"


def run(*stages: str, **environment: object) -> subprocess.CompletedProcess[str]:
    variables = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [SCRIPT, *stages],
        env=os.environ | {"DRY_RUN": "1", "OMP_NUM_THREADS": "1", "PYTHON": sys.executable} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.rehearsal
@needs_tools
def test_gpu_script_from_texts_to_checkpoints_that_come_back_in_parts(data: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = run(DATA=data, WORK=work, REHEARSE="short", OVERRIDES=" ".join(SECONDS))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = work / "here" / "gpu"
    assert "| held-out text " in (result / "report.md").read_text()
    for name in ("pretrained", "sentiment"):
        checkpoint = load_checkpoint(result / "export" / name)
        assert checkpoint.config.num_hidden_layers == 2
    assert "TF-IDF" in (result / "report.md").read_text()
    # a finished stage is skipped; a damaged part is refused
    there = {"WORK": work / "there", "OUT": work / "out", "OVERRIDES": " ".join(SECONDS)}
    again = run("receive", "trial", "pretrain", "finetune", **there)
    assert again.stderr.count("already done") == 4
    (work / "out" / "part-05").write_bytes(b"damaged")
    broken = run("join", WORK=work / "here", FROM=work / "out", OUT=work / "out")
    assert broken.returncode == 1
    assert "damaged on the way" in broken.stderr


@needs_tools
def test_gpu_script_out_of_time_asks_for_another_call(tmp_path: Path) -> None:
    late = run("pretrain", WORK=tmp_path, OUT=tmp_path / "out", LIMIT=0)
    assert (late.returncode, "call again" in late.stderr) == (130, True)


def test_gpu_recipe_both_checkpoints_fit_what_may_ship() -> None:
    import torch

    from model import BertForPreTraining, BertForSequenceClassification

    recipe = load_recipe("gpu")
    config = recipe.model.bert(recipe.tokenizer.vocab_size, recipe.positions)
    with torch.device("meta"):
        networks = BertForPreTraining(config), BertForSequenceClassification(config)
    assert sum(2 * p.numel() for network in networks for p in network.parameters()) < 99e6


def test_gpu_script_without_stage_prints_its_usage() -> None:
    said = run(DRY_RUN="")
    assert said.returncode == 2
    assert "gpu.sh prepare wheels pack" in said.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_gpu_script_passes_shellcheck() -> None:
    checked = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
