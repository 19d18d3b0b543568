"""docs/training.md: each command in it runs, in order, on a handful of texts; its table is the recipe's."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.training.commands import ENVIRONMENT, PATIENCE, ROOT
from tests.training.fields import DOCUMENT, PLACE, table
from tests.training.texts import review, story
from training.__main__ import main

TEXT = DOCUMENT.read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if line
]

SMALL = {
    "vocab_size = 8192": "vocab_size = 300\nmin_frequency = 1",
    'preset = "mini"': "hidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2",
    "minutes = 60": "tokens = 4000\nlong_fraction = 0.0",
    "epochs = 3": "epochs = 1\ndev_fraction = 0.2",
}
"""What makes the document's recipe one of seconds."""

BRIEF = {"adapt.minutes=5": "adapt.tokens=1000", "pretrain.start=": "pretrain.tokens=1000 pretrain.start="}
"""What makes a command one of seconds."""


def test_the_table_of_recipe_keys_is_the_recipes() -> None:
    found = PLACE.search(TEXT)
    assert found is not None
    assert found[0] == table(), "to renew it: PYTHONPATH=.:client python tests/training/fields.py"


def test_every_key_of_a_recipe_is_explained() -> None:
    assert "|  |\n" not in table()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the document's recipe, texts for it, and the programs it calls."""
    folder = tmp_path_factory.mktemp("docs")
    rng = random.Random(0)
    (folder / "texts").mkdir()
    (folder / "texts" / "stories.txt").write_text("\n\n".join(story(rng) for _ in range(60)))
    for name, count in (("reviews.csv", 60), ("test.csv", 10), ("unlabelled.csv", 20)):
        with (folder / name).open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["review", "sentiment"])
            rows.writerows([review(rng, bool(i % 2)), ("negative", "positive")[i % 2]] for i in range(count))
    found = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    recipe = found[1]
    for large, small in SMALL.items():
        assert large in recipe
        recipe = recipe.replace(large, small)
    (folder / "mine.toml").write_text(recipe)
    (folder / "model").symlink_to(ROOT / "model")
    programs = {"torchrun": "-m torch.distributed.run ", "bert-serve": "-m app "}
    (folder / "bin").mkdir()
    for name, arguments in programs.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


def environment(workplace: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(workplace / "bin"), os.environ["PATH"]])
    return ENVIRONMENT | {"PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])} | more


def test_every_command_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = next(i for i, command in enumerate(COMMANDS) if "bert-serve" in command)
    monkeypatch.chdir(workplace)
    for command in COMMANDS[:serve]:
        _run(command, workplace)
    with served(workplace, COMMANDS[serve]) as port:
        for call in COMMANDS[serve + 1 :]:
            curl, flag, body, url = shlex.split(call)
            assert (curl, flag) == ("curl", "--json")
            address = "http://" + url.replace("localhost:8000", f"localhost:{port}")
            response = httpx.post(address, json=json.loads(body))
            assert response.status_code == 200, response.text
    named = re.findall(r"^\| `([\w./-]+)`", TEXT.partition("## What is in the run folder")[2], re.MULTILINE)
    there = [name for name in named if "/" in name or name.endswith(".json")]
    missing = [n for n in there if not (workplace / "runs" / "mine" / n.replace("<n>", "1")).exists()]
    assert not missing


def _run(command: str, workplace: Path) -> None:
    """A command of training, here and now; any other in a process of its own."""
    for large, small in BRIEF.items():
        command = command.replace(large, small)
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "training"]:
        assert main(words[3:]) == 0, command
        return
    words[0] = str(workplace / "bin" / words[0])
    where = environment(workplace)
    done = subprocess.run(words, cwd=workplace, env=where, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@contextmanager
def served(workplace: Path, command: str) -> Iterator[int]:
    """The document's server on a free port, ready."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = environment(workplace, BERT_PORT=str(port), BERT_HOST="localhost")
    process = subprocess.Popen(f"exec env {command}", shell=True, cwd=workplace, env=where)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _ready(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://localhost:{port}/health/ready").status_code == 200
    except httpx.TransportError:
        return False
