"""docs/training.md: each command runs, in order, on a few texts. docs/recipe.md: its table has the keys of the code."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import MakeCheckpoint
from tests.docs.blocks import DOCS, blocks
from tests.ports import free_port
from tests.training import fields
from tests.training.commands import ENVIRONMENT, PATIENCE, ROOT
from tests.training.texts import review, sentence, story
from training.command import main
from training.stage import RUNNING

PAGE = DOCS / "training.md"
TEXT = PAGE.read_text(encoding="utf-8")
(PROGRAM,) = [block.text for block in blocks(PAGE) if block.language == "python"]
COMMANDS = [command for block in blocks(PAGE) if block.language == "sh" for command in block.commands()]
MAX_LINES = 320

SMALL_RECIPE = {
    'name = "mine"': 'name = "mine"\nmicro_batch_tokens = 512',
    "tokens = 50_000_000": "tokens = 10_240\nbatch_tokens = 1024",
    "[finetune]": "[finetune]\npasses = 1\nbatch_tokens = 1024",
}
"""Replacements that make the page's recipe train in seconds."""

SMALL_NETWORK = """
[tokenizer]
vocab_size = 300

[model]
hidden_size = 64
num_hidden_layers = 1
"""

SMALL_BUDGETS = {
    "pretrain.start=": "pretrain.tokens=1024 pretrain.start=",
    "pretrain.tokens=2_000_000": "pretrain.tokens=1024",
    "pretrain.batch_tokens=8192": "pretrain.tokens=4096",
    "pretrain.batch_tokens=65_536": "pretrain.tokens=6144",
    "classify reviews.csv": "classify reviews.csv finetune.pretrained=model/weights/pretrained",
    "--nproc-per-node 2": "--nproc-per-node 1",
    "--nproc-per-node 8": "--nproc-per-node 1",
}
"""Replacements that make the page's commands run in seconds."""


def test_page_is_short() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_recipe_page_has_the_keys_of_the_code() -> None:
    found = fields.PLACE.search(fields.DOCUMENT.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == fields.table(), "to renew it: PYTHONPATH=.:client python tests/training/fields.py"


@pytest.fixture(scope="module")
def workplace(
    tmp_path_factory: pytest.TempPathFactory, save_pretrained: MakeCheckpoint, save_sentiment: MakeCheckpoint
) -> Path:
    """A folder with the page's recipe, texts for it, the programs that it calls, and tiny weights in place of the
    shipped ones."""
    folder = tmp_path_factory.mktemp("docs")
    rng = random.Random(0)
    (folder / "texts").mkdir()
    (folder / "texts" / "stories.txt").write_text("\n\n".join(story(rng) for _ in range(60)))
    for name, count in (("reviews.csv", 80), ("test.csv", 10)):
        with (folder / name).open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["title", "body", "sentiment"])
            for i in range(count):
                rows.writerow([sentence(rng), review(rng, good=bool(i % 2)), ("negative", "positive")[i % 2]])
    (recipe,) = [block.text for block in blocks(PAGE) if block.language == "toml"]
    (folder / "mine.toml").write_text(_replaced(recipe, SMALL_RECIPE) + SMALL_NETWORK)
    (folder / "model" / "weights").mkdir(parents=True)
    for name, save in (("pretrained", save_pretrained), ("sentiment", save_sentiment)):
        (folder / "model" / "weights" / name).symlink_to(save(name, max_position_embeddings=512))
    (folder / "bin").mkdir()
    for name, arguments in {"torchrun": "-m torch.distributed.run ", "bert-serve": "-m app "}.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        program.chmod(0o755)
    return folder


def _replaced(text: str, replacements: dict[str, str]) -> str:
    """The text with all replacements, each of which must apply."""
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def test_commands_of_the_page_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    assert all(any(old in command for command in COMMANDS) for old in SMALL_BUDGETS)
    runs = workplace / "runs"
    (serve,) = [i for i, command in enumerate(COMMANDS) if "bert-serve" in command]
    for command in COMMANDS[:serve]:
        run_training(command)
    call, *distributed = COMMANDS[serve + 1 :]
    with served(workplace, COMMANDS[serve]) as port:
        assert_answered(call, port)
    assert_program_answers()
    agents = []
    for command in distributed:
        if command.startswith("torchrun"):
            agents += start_torchrun(command, workplace)
        else:
            run_training(command)
    outputs = [agent.communicate(timeout=PATIENCE)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * len(agents), "\n".join(outputs)
    assert missing_files(runs) == []


def run_training(command: str) -> None:
    """Run `bert-train ...` in this process."""
    words = shlex.split(small(command))
    assert words[0] == "bert-train"
    assert main(words[1:]) == 0, command


def small(command: str) -> str:
    """The command with a budget of seconds."""
    for old, new in SMALL_BUDGETS.items():
        command = command.replace(old, new)
    return command


def start_torchrun(command: str, workplace: Path) -> list[subprocess.Popen[str]]:
    """Start `torchrun` as often as it has nodes."""
    words = shlex.split(small(command).replace("host:29500", f"localhost:{free_port()}"))
    nodes = int(words[words.index("--nnodes") + 1]) if "--nnodes" in words else 1
    words[0] = str(workplace / "bin" / words[0])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    variables = environment(workplace)
    return [subprocess.Popen(words, cwd=workplace, env=variables, text=True, **pipes) for _ in range(nodes)]


def assert_answered(call: str, port: int) -> None:
    """Send the page's curl command to a port: each input has a result."""
    curl, flag, body, url = shlex.split(call)
    assert (curl, flag) == ("curl", "--json")
    address = "http://" + url.replace("localhost:8000", f"localhost:{port}")
    response = httpx.post(address, json=json.loads(body), timeout=PATIENCE)
    assert response.status_code == 200, response.text
    assert len(response.json()["results"]) == len(json.loads(body)["inputs"])


def assert_program_answers() -> None:
    """Run the page's program in this process: it prints labels with the scores of two inputs, and five words."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(PROGRAM, {})
    *rows, words = map(ast.literal_eval, output.getvalue().splitlines())
    assert [list(row) for row in rows] == [["NEGATIVE", "POSITIVE"]] * 2
    assert [sum(row.values()) for row in rows] == pytest.approx([1, 1])
    assert len(words) == 5


def missing_files(runs: Path) -> list[str]:
    """Files and folders of the page that no run has made; a finished one has nothing that is being made."""
    section = TEXT.partition("## Files of a run")[2]
    names = [re.sub(r"<\w+>", "*", name) for name in re.findall(r"`([^`]+)`", section) if name != "runs/mine/"]
    assert names
    return [name for name in names if name != f"{RUNNING}/" and not list(runs.glob(f"*/**/{name}"))]


def environment(workplace: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(workplace / "bin"), os.environ["PATH"]])
    sources = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    return ENVIRONMENT | {"PATH": path, "PYTHONPATH": sources} | more


@contextlib.contextmanager
def served(workplace: Path, command: str) -> Iterator[int]:
    """The page's server on a free port, ready."""
    port = free_port()
    variables = environment(workplace, BERT_PORT=str(port), BERT_HOST="localhost")
    process = subprocess.Popen(f"exec env {command}", shell=True, cwd=workplace, env=variables)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _is_ready(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://localhost:{port}/health/ready", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False
