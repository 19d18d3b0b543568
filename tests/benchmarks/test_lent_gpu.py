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
import torch

from model import BertForPreTraining, BertForSequenceClassification, load_checkpoint
from tests.training.texts import review, story
from training.pipeline import Pipeline
from training.recipe import load_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "lent_gpu.sh"
PATIENCE = 600  # seconds, for a machine that is busy
SMALL = (
    *("device=cpu", "tokenizer.vocab_size=400", "model.preset=tiny", "model.num_hidden_layers=2"),
    *("model.hidden_size=64", "micro_batch_tokens=512", "pretrain.tokens=2048", "pretrain.batch_tokens=512"),
    *("finetune.batch_tokens=512", "finetune.passes=0.2", "finetune.seeds=[1]", "finetune.max_length=48"),
)
SHORT = {"TESTERS": 1, "SIZES": 512, "SERVE": "1 --seconds 1", "BASE": "tiny --length 16 --batch 2", "RATES": "1e-3"}
BENCHMARKS = ["cuda-tests", "serving", "steps-512-false", "steps-512-true", "transformers"]
TRAININGS = ["teacher", "classifier", "rate-1e-3"]

needs_tools = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("bash", "tar", "xz", "split", "sha256sum", "timeout")),
    reason="needs GNU tools and xz",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every file that the recipe names, with stories or reviews."""
    recipe = load_recipe("shipped")
    assert recipe.soft_labels
    rng = random.Random(0)
    labelled = [*recipe.finetune.train, *recipe.finetune.test, *recipe.soft_labels.sources]
    for name in {source.path for source in (*labelled, *recipe.corpus.sources, *recipe.corpus.heldout) if source.path}:
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
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "CHANGES": " ".join(SMALL), "LACKING": "", "MIB": "1000"}
        | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.rehearsal
@needs_tools
@pytest.mark.parametrize("minutes", [45, 15])
def test_lent_gpu_from_texts_to_checkpoints_that_come_back_in_parts(
    data: Path, pretrained: Path, tmp_path: Path, minutes: int
) -> None:
    def succeeds(*stages: str, **environment: object) -> str:
        done = run(*stages, MINUTES=minutes, START=pretrained, **environment)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stderr

    def comes_back() -> None:
        said = succeeds("deliver", "1", WORK=there, OUT=out, PART=500)
        for number in range(2, int(said.split()[-1]) + 1):
            succeeds("deliver", str(number), WORK=there, OUT=out, PART=500)
        succeeds("join", WORK=here, OUT=out)

    def stopped(limit: int, reason: str) -> None:
        late = run("next", WORK=there, LIMIT=limit, MINUTES=minutes, START=pretrained, **SHORT)
        assert (late.returncode, reason in late.stderr) == (130, True), late.stderr

    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    succeeds("prepare", "pack", WORK=here, DATA=data, ROOM=10)
    folders = sorted((here / "pack").iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) > 1
    for folder in folders:
        shutil.copytree(folder, tmp_path / "sent" / folder.name)
        succeeds("unpack", WORK=there, PACK=tmp_path / "sent")
        shutil.rmtree(tmp_path / "sent")
    stopped(1, "no time for cuda-tests; call again")
    if minutes == 15:  # the others are the same
        (there / "done").mkdir()
        for job in BENCHMARKS:
            (there / "done" / job).write_text("0")
        stopped(1, "classifier\nlent_gpu.sh: out of time; call again")
    succeeds("next", WORK=there, **SHORT)
    jobs = [*BENCHMARKS, *TRAININGS, *["student"] * (minutes == 45)]
    assert {file.name: int(file.read_text()) for file in (there / "done").iterdir()} == dict.fromkeys(jobs, 0)
    comes_back()
    expected = {"large/pretrained", "shipped/classifier", *["shipped/pretrained"] * (minutes == 45)}
    export = here / "run" / "export"
    assert {str(file.parent.relative_to(export)) for file in export.rglob("config.json")} == expected
    assert all(load_checkpoint(export / name).config.num_hidden_layers == 2 for name in expected)
    if minutes == 45:
        changes = (f"run={here}", "name=run", f"data={data}", f"pretrain.teacher={export / 'large' / 'pretrained'}")
        models = Pipeline(load_recipe("shipped", [*changes, *SMALL])).models()
        assert set(models) == {"pretrained", "classifier"}, "evaluate finds them"
    (there / "run" / "logs" / "serving.txt").write_text("again")
    comes_back()
    assert len(list(out.glob("part-*"))) == 1, "only what is new"
    next(out.glob("part-*")).write_bytes(b"damaged")
    assert "parts are missing or damaged" in run("join", WORK=here, OUT=out).stderr


def test_shipped_recipe_makes_checkpoints_that_fit_what_may_ship() -> None:
    recipe = load_recipe("shipped")
    config = recipe.model.bert(recipe.tokenizer.vocab_size, recipe.positions)
    with torch.device("meta"):
        networks = BertForPreTraining(config), BertForSequenceClassification(config)
    assert sum(2 * p.numel() for network in networks for p in network.parameters()) < 99e6


def test_lent_gpu_without_stage_prints_its_usage() -> None:
    said = run()
    assert said.returncode == 2
    assert "lent_gpu.sh prepare pack" in said.stdout
    assert len(SCRIPT.read_text().splitlines()) <= 165


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_lent_gpu_passes_shellcheck() -> None:
    checked = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
