"""docs/: every call in it, sent to the service with the shipped weights, gives the answer printed below it."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import httpx
import pytest

from bert_client.command import main as cli
from tests.docs import answers, blocks, calls
from tests.docs.blocks import Block

OWN = {"training.md"}  # tests/training/test_docs.py runs its calls against the model that it trains
ALL = [block for block in blocks.ALL if block.where.partition(":")[0] not in OWN]
CURL = [block for block in ALL if block.language == "sh" and block.text.startswith("curl ")]
PYTHON = [block for block in ALL if block.language == "python"]
BERT = [
    command for block in ALL if block.language == "sh" for command in block.commands() if command.startswith("bert ")
]


def where(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("block", CURL, ids=where)
def test_call_gives_the_printed_answer(shipped: httpx.Client, block: Block) -> None:
    assert block.answer is not None
    calls.assert_answers(calls.send(shipped, block.text), block.answer.language, block.answer.text)


@pytest.mark.parametrize("block", PYTHON, ids=where)
def test_program_prints_the_printed_output(shipped: httpx.Client, block: Block) -> None:
    assert block.answer is not None
    calls.assert_printed(answers.printed(shipped, block.text), block.answer.text)


@pytest.mark.parametrize("command", BERT)
def test_command_line_is_answered(
    shipped: httpx.Client, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reviews").mkdir()
    for name in ("reviews.csv", "more.csv", "reviews/a.csv"):
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows([["text"], ["I loved it."], ["It broke."]])
    assert cli.run(shlex.split(command)[1:], {"BERT_URL": str(shipped.base_url)}) == 0
    for made in (*Path.cwd().glob("scored*.csv"), *Path.cwd().glob("scored/**/*.csv")):
        with made.open(newline="") as file:
            assert [row["error"] for row in csv.DictReader(file)] == ["", ""]
