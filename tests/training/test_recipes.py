"""Recipes that ship read local files with the columns of the data sets that they name."""

from __future__ import annotations

import io
import random
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.training.texts import review, story
from training.command import main
from training.recipe import load_recipe
from training.sources.documents import documents

RNG = random.Random(0)


def rows(head: str, row: str, count: int) -> str:
    """A CSV file. In a row, {n} is its number, {label} 0 or 1, {word} its name, {text} a review of this label."""
    lines = (
        row.format(n=n, label=n % 2, word=("negative", "positive")[n % 2], text=review(RNG, n % 2 == 1))
        for n in range(count)
    )
    return "\n".join([head, *lines, ""])


def articles(count: int) -> str:
    return "".join(f" = Film {n} = \n\n {story(RNG)} \n\n = = Plot = = \n\n {story(RNG)} \n\n" for n in range(count))


YAHOO = "id,topic,question_title,question_content,best_answer"
YAHOO_ROWS = "".join(f"{{n}}{topic},{topic},Why {topic}?,,{{text}}\n" for topic in range(10)).rstrip()
FILES = {
    "imdb.csv": rows("review,sentiment", '"{text}<br />Really.",{word}', 150),
    "yahoo_answers.csv": rows(YAHOO, YAHOO_ROWS, 20),
    "yahoo_answers_test.csv": rows(YAHOO, YAHOO_ROWS, 3),
    "wikitext/train.txt": articles(80),
    "wikitext/valid.txt": articles(20),
    "amazon_polarity/train.csv": rows("label,title,content", '{label},"Title","{text}"', 150),
    "amazon_polarity/test.csv": rows("label,title,content", '{label},"Title","{text}"', 30),
}
TUTORIALS = tuple(f"examples/{name}" for name in ("imdb", "yahoo_answers", "wikitext", "amazon_polarity"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", TUTORIALS)
def test_recipe_of_a_tutorial_reads_a_local_file_with_its_columns(name: str, folder: Path) -> None:
    recipe = load_recipe(name)
    sources = [*recipe.corpus.sources, *recipe.corpus.heldout, *recipe.finetune.train, *recipe.finetune.test]
    for source in sources:
        found = list(documents(source, folder))
        assert found
        assert all(document.text for document in found)
        assert all(document.label in recipe.finetune.labels for document in found if source.label)


def test_recipe_amazon_polarity_reads_title_and_content_apart(folder: Path) -> None:
    (source,) = load_recipe("examples/amazon_polarity").finetune.train
    first = next(documents(source, folder))
    assert first.fields[0] == "Title"
    assert first.fields[1]


TINY = (
    *("tokenizer.vocab_size=300", "model.preset=tiny", "model.hidden_size=16", "model.num_hidden_layers=2"),
    *("pretrain.examples.short_length=32", "pretrain.examples.long_fraction=0", "micro_batch_tokens=512"),
    *("pretrain.tokens=2048", "pretrain.batch_tokens=512", "finetune.batch_tokens=512", "finetune.passes=0.5"),
)


@pytest.mark.parametrize("name", TUTORIALS)
def test_recipe_of_a_tutorial_goes_from_its_file_to_an_export(name: str, folder: Path) -> None:
    with redirect_stdout(io.StringIO()):
        assert main(["all", name, "--data", str(folder), f"run={folder / 'runs'}", *TINY]) == 0
    exported = [file.parent.name for file in (folder / "runs").rglob("export/*/model.safetensors")]
    assert sorted(exported) == (["classifier", "pretrained"] if load_recipe(name).finetune.train else ["pretrained"])
