"""`tokenizer`: a vocabulary learned from an even sample of all sources."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.training.commands import occupied
from training.corpus.tokenizer import learn_tokenizer, make_tokenizer, open_tokenizer, sample, stripped_letters
from training.errors import CorpusError, RunError
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
    tokenizer = Tokenizer.load(make_tokenizer(recipe(root)))
    assert tokenizer.vocab[:5] == list(SPECIAL_TOKENS)
    for word in ("walking", "zebras", "film"):
        assert tokenizer.target_id(word)


def test_open_tokenizer_of_other_settings_gives_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_tokenizer(recipe(root))
    caplog.clear()
    open_tokenizer(recipe(root, sources=("a.txt",)))
    assert caplog.messages == []
    open_tokenizer(recipe(root, vocab_size=300))
    (message,) = caplog.messages
    assert "is used as it was made, but tokenizer.vocab_size was 120, is 300: run tokenizer to make it" in message


def test_open_tokenizer_after_a_failure_names_the_command(root: Path) -> None:
    with pytest.raises(CorpusError, match="no text to learn a vocabulary from"):
        make_tokenizer(recipe(root, sources=()))
    with pytest.raises(CorpusError, match="tokenizer is missing; run tokenizer first"):
        open_tokenizer(recipe(root))


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


def test_make_tokenizer_learns_again_only_from_other_text_or_settings(root: Path) -> None:
    file = make_tokenizer(recipe(root)) / "tokenizer.json"
    made = file.stat().st_mtime_ns
    make_tokenizer(recipe(root))
    assert file.stat().st_mtime_ns == made
    make_tokenizer(recipe(root, lowercase=False))
    assert "Zoo" in Tokenizer.load(file.parent).vocab
    make_tokenizer(recipe(root, sources=("a.txt",)))
    assert "zebras" not in Tokenizer.load(file.parent).vocab
    (root / "a.txt").write_text("quagga quaggas " * 200)
    make_tokenizer(recipe(root, sources=("a.txt",)))
    assert "quaggas" in Tokenizer.load(file.parent).vocab


def test_make_tokenizer_keeps_the_vocabulary_that_a_checkpoint_needs(root: Path) -> None:
    folder = make_tokenizer(recipe(root))
    before = (folder / "tokenizer.json").read_bytes()
    (folder.parent / "pretrain").mkdir()
    (folder.parent / "pretrain" / "state-000000001.pt").touch()
    with pytest.raises(RunError, match=r"tokenizer\.vocab_size was 120, is 90: .* another name, or delete .*pretrain"):
        make_tokenizer(recipe(root, vocab_size=90))
    assert (folder / "tokenizer.json").read_bytes() == before
    make_tokenizer(recipe(root))


def test_make_tokenizer_of_a_running_process_is_refused(root: Path) -> None:
    folder = make_tokenizer(recipe(root))
    with occupied(folder.parent / "pretrain" / "rank-0"), pytest.raises(RunError, match="another process works in"):
        make_tokenizer(recipe(root, vocab_size=90))


def test_make_tokenizer_of_few_words_warns_and_says_what_to_do(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_tokenizer(recipe(root, vocab_size=5000))
    assert "fewer than tokenizer.vocab_size (5000): add text, or lower vocab_size" in caplog.text


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


def test_make_tokenizer_copies_that_of_the_network_to_start_from(root: Path) -> None:
    first = make_tokenizer(recipe(root))
    second = recipe(root).model_copy(update={"name": "second"})
    continued = second.model_copy(update={"pretrain": second.pretrain.model_copy(update={"start": first})})
    folder = make_tokenizer(continued)
    assert folder != first
    assert Tokenizer.load(folder).to_json() == Tokenizer.load(first).to_json()
