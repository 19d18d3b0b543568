"""The page about the text behind the shipped weights."""

from __future__ import annotations

import pytest

from tests.shipped.data import FOLDER, PAGE, ROW, sha256
from training.recipe import load_recipe

HASHES = {row["name"]: row["sha256"] for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def test_page_has_every_file_of_the_recipe() -> None:
    recipe = load_recipe("english")
    read = (*recipe.corpus.sources, *recipe.corpus.heldout, *recipe.finetune.train, *recipe.finetune.test)
    assert set(HASHES) == {source.path for source in read}


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"needs the texts in {FOLDER}")
@pytest.mark.parametrize("name", HASHES)
def test_hash_is_that_of_the_file(name: str) -> None:
    assert sha256(FOLDER / name) == HASHES[name]
