"""Recipes that ship read local files with the columns of the data sets that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.recipe import load_recipe
from training.sources.documents import documents

FILES = {
    "imdb.csv": 'review,sentiment\n"A fine film.<br />Really.",positive\n"Dull.",negative\n',
    "yahoo_answers.csv": "id,topic,question_title,question_content,best_answer\n1,4,Why?,,Because it is so.\n",
    "yahoo_answers_test.csv": "id,topic,question_title,question_content,best_answer\n1,4,Who?,,Nobody knows.\n",
    "wikitext/train.txt": " = Robert = \n\n Robert is an actor . \n\n = = Life = = \n\n He lives . \n",
    "wikitext/valid.txt": " = Anna = \n\n Anna is a singer . \n",
    "amazon_polarity/train.csv": 'label,title,content\n1,"Great","It works."\n0,"Bad","It broke."\n',
    "amazon_polarity/test.csv": 'label,title,content\n1,"Good","It fits."\n',
}
TUTORIALS = ("imdb", "yahoo_answers", "wikitext", "amazon_polarity")


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
    (source,) = load_recipe("amazon_polarity").finetune.train
    first, _ = documents(source, folder)
    assert first.fields == ("Great", "It works.")
