"""`tokenizer`: a vocabulary learned from an even sample of all sources."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from training.corpus.tokenizer import learn_tokenizer, make_tokenizer, sample, stripped_letters
from training.errors import CorpusError
from training.recipe import Recipe


def recipe(root: Path, sources: tuple[str, ...] = ("a.txt", "b.txt"), **tokenizer: Any) -> Recipe:
    return Recipe(
        name="test",
        data=root,
        run=root / "runs",
        corpus={"sources": [{"path": path} for path in sources]},  # type: ignore[arg-type]
        tokenizer={"vocab_size": 120} | tokenizer,  # type: ignore[arg-type]
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = random.Random(0)
    for name, words in (("a", "walk walking talk talking the film"), ("b", "zebra zebras Zoo the film")):
        lines = (" ".join(rng.choices(words.split(), k=12)) for _ in range(200))
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    return tmp_path


def test_make_tokenizer_knows_the_words_of_all_sources(root: Path) -> None:
    make_tokenizer(recipe(root), root)
    tokenizer = Tokenizer.load(root)
    assert tokenizer.vocab[:5] == list(SPECIAL_TOKENS)
    for word in ("walking", "zebras", "film"):
        assert tokenizer.target_id(word)


def test_learn_tokenizer_gives_the_same_vocabulary_again(root: Path) -> None:
    assert learn_tokenizer(recipe(root)).to_json() == learn_tokenizer(recipe(root)).to_json()


def test_learn_tokenizer_keeps_case_if_the_recipe_says_so(root: Path) -> None:
    assert "Zoo" in learn_tokenizer(recipe(root, lowercase=False)).vocab
    assert "Zoo" not in learn_tokenizer(recipe(root)).vocab


def test_learn_tokenizer_without_text_is_an_error(root: Path) -> None:
    with pytest.raises(CorpusError, match="no text to learn a vocabulary from"):
        learn_tokenizer(recipe(root, sources=()))


def test_sample_is_all_of_a_small_text() -> None:
    assert sample(["a\n\nb", "c"], 100) == ["a", "b", "c"]


def test_sample_draws_evenly_from_beginning_to_end() -> None:
    paragraphs = [f"{i:06d}" * 10 for i in range(20_000)]
    drawn = sample(("\n".join(paragraphs[i : i + 10]) for i in range(0, 20_000, 10)), 120_000)
    assert sum(map(len, drawn)) == 120_000
    assert drawn == sorted(drawn)
    per_quarter = [sum(int(text[:6]) // 5000 == quarter for text in drawn) for quarter in range(4)]
    assert all(450 < count < 550 for count in per_quarter)


@pytest.mark.parametrize("vocab_size", [10, 5000])
def test_learn_tokenizer_warns_of_another_size(root: Path, caplog: pytest.LogCaptureFixture, vocab_size: int) -> None:
    tokenizer = learn_tokenizer(recipe(root, vocab_size=vocab_size))
    assert f"tokenizer.vocab_size is {vocab_size}, but the text gives {tokenizer.vocab_size} pieces" in caplog.text


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("バスはがっかりです。", "バ, が, で"),
        ("한국어", "한, 국, 어"),
        ("ภาษาไทยที่", "ี, ่"),
        ("Der Bus fährt, schöne Grüße; café déjà vu; άλφα; ёж и й; 中文; שלום", ""),
        ("one バ among " + "many letters " * 20, ""),
    ],
)
def test_stripped_letters_are_those_that_readers_need(text: str, letters: str) -> None:
    assert stripped_letters([text]) == letters
