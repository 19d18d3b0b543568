"""The README's claims: its curl calls give the answers printed below them, its figures are the report's."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
import yaml

from tests.docs.calls import assert_answers, send

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PRETRAINING, SENTIMENT = (
    (ROOT / "model" / "weights" / name / "README.md").read_text() for name in ("pretrained", "sentiment")
)
OUR_SENTIMENT, OUR_PRETRAINING = README.split("| held-out text, examples |")
CALLS = re.findall(r"```sh\n(curl .*?)```\n+```json\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("card", "task"), [(PRETRAINING, "fill-mask"), (SENTIMENT, "text-classification")])
def test_card_begins_with_its_metadata(card: str, task: str) -> None:
    empty, metadata, _ = card.split("---\n", 2)
    assert not empty
    assert yaml.safe_load(metadata) == {"pipeline_tag": task, "language": "en"}


def test_the_readme_shows_a_call_for_each_task() -> None:
    paths = [re.search(r"localhost:8000(/[a-z-]+)", command)[1] for command, _ in CALLS]  # type: ignore[index]
    assert paths == ["/fill-mask", "/next-sentence", "/sentiment"]


@pytest.mark.parametrize(("command", "answer"), CALLS)
def test_the_readmes_call_gives_the_readmes_answer(shipped: httpx.Client, command: str, answer: str) -> None:
    assert_answers(send(shipped, command), "json", answer)


def rows(text: str) -> list[list[str]]:
    """Cells of every table's rows, bold or not."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|-")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def only(text: str, start: str) -> list[str]:
    """The one row that begins so."""
    (row,) = [row for row in rows(text) if row[0] == start]
    return row


SETS = [
    ("IMDB,", "imdb"),
    ("SST-2 dev,", "sst2"),
    ("Amazon,", "amazon"),
    ("Reviews of 34 sources as one text,", "reviews"),
    ("The 6,631 of them with a title, as title and body", "reviews (pair)"),
]


@pytest.mark.parametrize(("ours", "theirs"), SETS)
def test_sentiment_figures_are_those_of_the_card(ours: str, theirs: str) -> None:
    (row,) = [row for row in rows(OUR_SENTIMENT) if row[0].startswith(ours)]
    card = only(SENTIMENT, theirs)
    assert card[1] in row[0]
    accuracy, error = map(float, card[2].split(" ± "))
    majority, *bags = map(float, card[3:6])
    assert row[1] == f"{accuracy:.3f} ± {error:.3f}"
    assert list(map(float, row[3:])) == pytest.approx([*bags, majority], abs=0.00051)  # of four digits, three
    (head,) = [cells for cells in rows(SENTIMENT) if cells[0] == "seed"]
    seeds, seeds_error = map(float, only(SENTIMENT, "mean")[head.index(theirs)].split(" ± "))
    assert row[2] == f"{seeds:.3f} ± {seeds_error:.3f}"


def test_means_over_sources_are_those_of_the_card() -> None:
    told = re.search(
        r"balanced accuracy is (.*?) for one text \(TF-IDF (.*?)\);.*? is (.*?) for title .*?\((.*?)\)",
        " ".join(README.split()),
    )
    assert told is not None
    large = [row for row in rows(SENTIMENT) if row[0] == "those with 50 texts of each label"]
    cells = [figure for row in large for figure in row[2:]]
    assert [list(map(float, found.split(" ± "))) for found in told.groups()] == [
        pytest.approx(list(map(float, cell.split(" ± "))), abs=0.00051) for cell in cells
    ]


@pytest.mark.parametrize("source", ["Wikipedia", "Wikinews", "IMDB", "books"])
def test_pretraining_figures_are_those_of_the_report(source: str) -> None:
    (row,) = [row for row in rows(OUR_PRETRAINING) if row[0].startswith(f"{source},")]
    examples, loss, entropy, accuracy, unigram, mixed, elsewhere, _ = only(PRETRAINING, source.lower())[1:]
    assert row[0] == f"{source}, {examples}"
    nats = [f"{round(float(figure), 2):.2f}" for figure in (loss, entropy)]
    assert row[1:] == [accuracy, unigram, *nats, elsewhere, mixed]


def test_a_misspelt_word_changes_as_many_answers_as_the_readme_says() -> None:
    assert "a misspelt word changes one answer in five" in README
    right, cases = map(int, only(SENTIMENT, "unchanged: a typing error in the longest word")[1].split(" of "))
    assert 1 - right / cases == pytest.approx(1 / 5, abs=0.03)
