"""From documents to shards and back: what is kept, what is made anew, and what is refused."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from training.corpus.pieces import pieces

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.training.commands import occupied
from training.corpus import pieces as pieces_module
from training.corpus import prepare as corpus_module
from training.corpus.engines import local as workers_module
from training.corpus.prepare import Corpus, check_recipe, entropy, prepare
from training.errors import CorpusError, RunError, SourceError
from training.recipe import Recipe
from training.sources.documents import documents

WORDS = ("film", "story", "actor", "scene", "music", "ending", "plot", "camera", "joke", "hero")
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, "the", "was", "good", "bad", ".", *WORDS])
CASED = Tokenizer.from_vocab([*SPECIAL_TOKENS, "the", "was", "good", "bad", ".", *WORDS], lowercase=False)


def sentence(rng: random.Random) -> str:
    return f"The {rng.choice(WORDS)} {rng.choice(WORDS)} was {rng.choice(('good', 'bad'))}."


def text(rng: random.Random) -> str:
    paragraphs = (" ".join(sentence(rng) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 4)))
    return "\n".join(paragraphs)


def write_documents(file: Path, count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = [text(rng) for _ in range(count)]
    write_texts(file, texts)
    return texts


def write_texts(file: Path, texts: list[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def recipe(root: Path, **corpus: Any) -> Recipe:
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl"}]
    settings = {"sources": sources, "workers": 1, "heldout_fraction": 0.1} | corpus
    return Recipe(name="test", data=root / "data", run=root / "runs", corpus=settings)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources of 60 and 40 documents, and shards so small that each source needs several."""
    write_documents(tmp_path / "data" / "a.jsonl", 60, seed=1)
    write_documents(tmp_path / "data" / "b.jsonl", 40, seed=2)
    monkeypatch.setattr(pieces_module, "PIECE_CHARACTERS", 2000)
    return tmp_path


def texts_of(corpus: Corpus, tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    """Each document, its sentences joined by spaces."""
    found = []
    for begin, end in zip(corpus.document_starts[:-1], corpus.document_starts[1:], strict=True):
        first, last = corpus.sentence_starts[begin], corpus.sentence_starts[end]
        words = map(tokenizer.token, corpus.tokens(int(first), int(last)).tolist())
        found.append(" ".join(words).replace(" .", "."))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def as_read(texts: list[str]) -> list[str]:
    return [text.replace("\n", " ").lower() for text in texts]


# --- what is kept


def test_every_document_comes_back_in_order_from_several_shards(root: Path) -> None:
    folder = prepare(recipe(root, heldout_fraction=0), TOKENIZER)
    corpus = Corpus.open(folder / "train")
    written = [document.text for s in recipe(root).corpus.sources for document in documents(s, root / "data")]
    assert len(corpus.manifest["shards"]) > 5
    assert texts_of(corpus) == as_read(written)
    assert not (folder / "heldout").exists()


def test_boundaries_are_those_of_sentences_and_documents(root: Path) -> None:
    corpus = Corpus.open(prepare(recipe(root), TOKENIZER) / "train")
    assert corpus.sentence_starts.dtype == corpus.document_starts.dtype == np.int64
    assert (corpus.sentence_starts[0], corpus.sentence_starts[-1]) == (0, corpus.num_tokens)
    assert (corpus.document_starts[0], corpus.document_starts[-1]) == (0, corpus.num_sentences)
    assert len(corpus.sentence_starts) == corpus.num_sentences + 1
    assert len(corpus.document_starts) == corpus.num_documents + 1
    assert set(np.diff(corpus.sentence_starts)) == {6}
    firsts = [int(corpus.tokens(first, first + 1)[0]) for first in corpus.sentence_starts[:-1].tolist()]
    assert set(firsts) == {TOKENIZER.token_id("the")}


def test_counts_agree_with_the_arrays_and_per_source(root: Path) -> None:
    corpus = Corpus.open(prepare(recipe(root), TOKENIZER) / "train")
    assert list(corpus.manifest["sources"]) == ["a", "b"]
    for key, total in (("tokens", corpus.num_tokens), ("sentences", corpus.num_sentences)):
        assert sum(counts[key] for counts in corpus.manifest["sources"].values()) == total
    assert corpus.token_counts().sum() == corpus.num_tokens
    assert corpus.unigram_entropy == pytest.approx(entropy(corpus.token_counts()))
    assert 2 < corpus.unigram_entropy < math.log(TOKENIZER.vocab_size)


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([4, 0, 4, 4, 4])) == pytest.approx(math.log(4))
    assert entropy(np.array([7])) == 0


def test_ids_of_a_large_vocabulary_have_32_bits(root: Path) -> None:
    large = Tokenizer.from_vocab([*SPECIAL_TOKENS, *(f"w{i}" for i in range(70_000)), *TOKENIZER.vocab[5:]])
    narrow = Corpus.open(prepare(recipe(root), TOKENIZER) / "train")
    assert narrow.tokens(0, 6).dtype == np.uint16
    wide = Corpus.open(prepare(recipe(root), large) / "train")
    assert wide.tokens(0, 6).dtype == np.uint32
    assert wide.num_tokens == narrow.num_tokens
    assert wide.token_counts().sum() == wide.num_tokens


def test_tokens_are_read_from_the_file_not_into_memory(root: Path) -> None:
    tokens = Corpus.open(prepare(recipe(root), TOKENIZER) / "train").tokens(6, 18)
    assert isinstance(tokens.base, np.memmap)
    assert not tokens.flags.writeable


def test_more_shards_than_open_files_can_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "OPEN_SHARDS", 2)
    corpus = Corpus.open(prepare(recipe(root), TOKENIZER) / "train")
    assert texts_of(corpus) == texts_of(corpus)


def test_lines_that_are_sentences_are_not_split(root: Path) -> None:
    (root / "data" / "lines.txt").write_text(
        "The film. The plot was good\nthe joke\n\nThe hero was bad\nthe end"
    )
    source = {"path": "lines.txt", "lines": "sentence"}
    corpus = Corpus.open(prepare(recipe(root, sources=[source], heldout_fraction=0), TOKENIZER) / "train")
    assert np.diff(corpus.sentence_starts).tolist() == [7, 2, 4, 2]
    assert corpus.document_starts.tolist() == [0, 2, 4]


# --- train and held-out


def test_no_document_is_in_both_train_and_heldout(root: Path) -> None:
    folder = prepare(recipe(root, heldout_fraction=0.3), TOKENIZER)
    train = texts_of(Corpus.open(folder / "train"))
    heldout = [t for name in ("a", "b") for t in texts_of(Corpus.open(folder / "heldout" / name))]
    assert len(train) + len(heldout) == 100
    assert 10 < len(heldout) < 50
    assert not set(train) & set(heldout)


def test_a_text_that_occurs_twice_is_on_one_side(root: Path) -> None:
    texts = write_documents(root / "data" / "a.jsonl", 50, seed=3)
    write_texts(root / "data" / "b.jsonl", [f"  {text.upper()} " for text in texts])
    folder = prepare(recipe(root, heldout_fraction=0.4), TOKENIZER)
    train = set(texts_of(Corpus.open(folder / "train")))
    heldout = [set(texts_of(Corpus.open(folder / "heldout" / name))) for name in ("a", "b")]
    assert heldout[0] == heldout[1]
    assert not train & heldout[0]


def test_split_does_not_depend_on_other_documents_or_seed(root: Path) -> None:
    before = texts_of(Corpus.open(prepare(recipe(root, heldout_fraction=0.3), TOKENIZER) / "heldout" / "a"))
    with (root / "data" / "a.jsonl").open("a") as file:
        file.write(json.dumps({"text": "The hero. The plot."}) + "\n")
    again = recipe(root, heldout_fraction=0.3).model_copy(update={"seed": 9})
    after = texts_of(Corpus.open(prepare(again, TOKENIZER) / "heldout" / "a"))
    assert [text for text in after if text != "the hero. the plot."] == before


def parts_of(recipe: Recipe) -> tuple[set[str], set[str]]:
    """Texts to train on, and held-out ones."""
    made = list(pieces(recipe))
    train = {text for piece in made if piece.part == "train" for text in piece.texts}
    return train, {text for piece in made if piece.part != "train" for text in piece.texts}


def test_a_text_of_several_groups_is_on_one_side(tmp_path: Path) -> None:
    own = [{"film": film, "text": f"a text of {film}"} for film in ascii_lowercase]
    shared = [{"film": film, "text": "the same words"} for film in ascii_lowercase]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(map(json.dumps, shared + own)))
    train, heldout = parts_of(
        recipe(tmp_path, sources=[{"path": "a.jsonl", "group": "film"}], heldout_fraction=0.3)
    )
    assert min(len(train), len(heldout)) > 5
    assert not train & heldout


def test_a_text_of_two_sources_is_on_one_side_though_one_of_them_has_groups(tmp_path: Path) -> None:
    texts = [f"a text about {letter}" for letter in ascii_lowercase]
    write_texts(tmp_path / "data" / "a.jsonl", texts)
    rows = [json.dumps({"author": f"author {n % 5}", "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "data" / "b.jsonl").write_text("\n".join(rows))
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl", "group": "author"}]
    for order in (sources, sources[::-1]):
        train, heldout = parts_of(recipe(tmp_path, sources=order, heldout_fraction=0.3))
        assert min(len(train), len(heldout)) > 5
        assert not train & heldout


def test_what_is_in_a_group_of_a_heldout_source_is_not_trained_on(tmp_path: Path) -> None:
    rows = [json.dumps({"film": film, "text": f"{film} is {how}"}) for film in "ab" for how in ("good", "bad")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "data" / "dev.jsonl").write_text(rows[0])
    source = {"path": "a.jsonl", "group": "film"}
    train, heldout = parts_of(recipe(tmp_path, sources=[source], heldout=[source | {"path": "dev.jsonl"}]))
    assert (train, heldout) == ({"b is good", "b is bad"}, {"a is good"})


def test_documents_of_heldout_sources_are_left_out_of_training(root: Path) -> None:
    shared = write_documents(root / "data" / "a.jsonl", 30, seed=4)
    write_texts(root / "data" / "dev.jsonl", [shared[3], shared[7].upper(), "The plot was good."])
    settings = {"heldout": [{"path": "dev.jsonl"}], "sources": [{"path": "a.jsonl"}], "heldout_fraction": 0.5}
    folder = prepare(recipe(root, **settings), TOKENIZER)
    assert texts_of(Corpus.open(folder / "train")) == as_read(shared[:3] + shared[4:7] + shared[8:])
    assert len(texts_of(Corpus.open(folder / "heldout" / "dev"))) == 3
    assert [path.name for path in (folder / "heldout").iterdir()] == ["dev"]


def test_a_small_source_holds_out_one_document_and_a_single_one_none(root: Path) -> None:
    write_texts(root / "data" / "a.jsonl", ["The film was good.", "The plot was bad.", "The film  was GOOD."])
    write_texts(root / "data" / "b.jsonl", ["The hero was bad."])
    folder = prepare(recipe(root, heldout_fraction=1e-9), TOKENIZER)
    sides = [texts_of(Corpus.open(folder / part)) for part in ("train", "heldout/a")]
    assert sorted({*sides[0]} - {"the hero was bad."} | {*sides[1]}) == [
        "the film was good.",
        "the plot was bad.",
    ]
    assert not (folder / "heldout" / "b").exists()


def test_a_source_that_the_limit_would_hold_out_whole_is_trained_on(root: Path) -> None:
    write_texts(root / "data" / "a.jsonl", ["The film was good.", "The plot was bad."])
    write_texts(root / "data" / "b.jsonl", ["The hero was bad."])
    folder = prepare(recipe(root, heldout_fraction=1 - 1e-9), TOKENIZER)
    sides = [texts_of(Corpus.open(folder / part)) for part in ("train", "heldout/a")]
    assert [len(side) for side in sides] == [2, 1]
    assert "the hero was bad." in sides[0]
    assert not (folder / "heldout" / "b").exists()


# --- interruptions


def test_two_at_once_are_refused(root: Path) -> None:
    with (
        occupied(root / "runs" / "test"),
        pytest.raises(RunError, match=r"another process is at work in .*test: wait for its end"),
    ):
        prepare(recipe(root), TOKENIZER)
    assert prepare(recipe(root), TOKENIZER)


class Killed(BaseException):
    """Stands for a signal: nothing in the program expects it."""


def killed_after(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """Let that many shards be made, then end in the middle of one. Returns how many were asked for since."""
    original = workers_module.make_shard
    calls = [0]

    def make_shard(encoder: Any, corpus: Path, piece: Any) -> Any:
        if calls[0] == count:
            half = corpus / piece.part / "000099.tmp"
            half.mkdir(parents=True)
            (half / "tokens.npy").write_bytes(b"half a file")
            raise Killed
        calls[0] += 1
        return original(encoder, corpus, piece)

    monkeypatch.setattr(workers_module, "make_shard", make_shard)
    return lambda: calls[0]


def made_at(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*.npy")}


def test_interrupted_run_continues_with_the_missing_shards(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = contents(prepare(recipe(root).model_copy(update={"name": "whole"}), TOKENIZER))
    folder = recipe(root).folder / "corpus"
    with monkeypatch.context() as patch:
        killed_after(patch, 4)
        with pytest.raises(Killed):
            prepare(recipe(root), TOKENIZER)
    with pytest.raises(CorpusError, match="unfinished one; run prepare again"):
        Corpus.open(folder / "train")
    before = {name: time for name, time in made_at(folder).items() if "tmp" not in name}
    assert len(before) == 4 * 3
    assert prepare(recipe(root), TOKENIZER) == folder
    assert before.items() <= made_at(folder).items()
    assert {k: v for k, v in contents(folder).items() if "tmp" not in k} == expected


def test_finished_corpus_is_used_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(root), TOKENIZER)
    killed_after(monkeypatch, 0)
    prepare(recipe(root, workers=2), TOKENIZER)


def test_lost_and_damaged_shards_are_made_again(root: Path) -> None:
    folder = prepare(recipe(root), TOKENIZER)
    expected = contents(folder)
    (folder / "train" / "000001" / "tokens.npy").unlink()
    with (folder / "train" / "000002" / "tokens.npy").open("ab") as file:
        file.write(b"more")
    (folder / "heldout" / "a" / "manifest.json").unlink()
    assert contents(prepare(recipe(root), TOKENIZER)) == expected


@pytest.mark.parametrize("change", ["recipe", "tokenizer", "text"])
def test_what_was_made_from_something_else_is_made_anew(
    root: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    folder = prepare(recipe(root), TOKENIZER)
    stray = folder / "train" / "000999"
    stray.mkdir()
    if change == "text":
        write_documents(root / "data" / "b.jsonl", 40, seed=5)
    settings: dict[str, Any] = {"heldout_fraction": 0.2} if change == "recipe" else {}
    prepare(recipe(root, **settings), CASED if change == "tokenizer" else TOKENIZER)
    assert "starting anew" in caplog.text
    assert not stray.exists()


def test_a_corpus_that_a_run_reads_is_not_made_anew(root: Path) -> None:
    folder = prepare(recipe(root), TOKENIZER)
    before = made_at(folder)
    with occupied(folder.parent / "pretrain"):
        prepare(recipe(root), TOKENIZER)
        with pytest.raises(RunError, match="another process is at work"):
            prepare(recipe(root), CASED)
    assert made_at(folder) == before


def test_a_corpus_moved_with_its_data_is_still_the_same(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prepare(recipe(root), TOKENIZER)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "project"
    root.rename(elsewhere)
    folder = elsewhere / "runs" / "test" / "corpus"
    before = made_at(folder)
    assert prepare(recipe(elsewhere), TOKENIZER) == folder
    assert made_at(folder) == before


# --- workers


def test_two_workers_make_the_same_files_as_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "SMALL", 0)
    one = contents(prepare(recipe(root).model_copy(update={"name": "one"}), TOKENIZER))
    two = contents(prepare(recipe(root, workers=2).model_copy(update={"name": "two"}), TOKENIZER))
    assert one == two


class DyingPool:
    """Stands for a pool whose process the system has ended."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def submit(self, *arguments: Any) -> None:
        raise BrokenProcessPool

    def shutdown(self, *, cancel_futures: bool) -> None:
        pass


def test_death_of_a_worker_is_reported_with_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "SMALL", 0)
    monkeypatch.setattr(workers_module, "ProcessPoolExecutor", DyingPool)
    with pytest.raises(CorpusError, match=r"a worker died.*run prepare again, it continues"):
        prepare(recipe(root, workers=2), TOKENIZER)


# --- what is refused


def test_a_corpus_of_another_recipe_is_refused(root: Path) -> None:
    folder = prepare(recipe(root), TOKENIZER)
    (root / "data").rename(root / "elsewhere")  # it is compared without the texts
    noted = [{"path": "a.jsonl", "note": "public domain"}, {"path": "b.jsonl"}]
    check_recipe(recipe(root, workers=2, sources=noted))
    with pytest.raises(CorpusError, match=r"made from another recipe \(corpus\.sources\); run prepare again"):
        check_recipe(recipe(root, sources=[{"path": "a.jsonl"}]))
    (folder / "fingerprint.json").unlink()
    check_recipe(recipe(root, sources=[{"path": "a.jsonl"}]))


def test_a_source_that_cannot_be_read_costs_no_earlier_corpus(root: Path) -> None:
    before = made_at(prepare(recipe(root), TOKENIZER))
    misspelt = [{"path": "a.jsonl"}, {"path": "b.jsonl", "text": ["txet"]}]
    with pytest.raises(SourceError, match="txet"):
        prepare(recipe(root, sources=misspelt), TOKENIZER)
    assert made_at(recipe(root).folder / "corpus") == before


def test_another_tokenizer_is_refused(root: Path) -> None:
    corpus = Corpus.open(prepare(recipe(root), TOKENIZER) / "train")
    corpus.check_tokenizer(TOKENIZER)
    with pytest.raises(CorpusError, match="made with another tokenizer; run prepare again"):
        corpus.check_tokenizer(CASED)


def test_missing_file_is_named_when_opening(root: Path) -> None:
    folder = prepare(recipe(root), TOKENIZER) / "train"
    (folder / "000001" / "sentences.npy").unlink()
    with pytest.raises(CorpusError, match=r"train/000001/sentences\.npy: missing.*run prepare again"):
        Corpus.open(folder)


def test_damaged_file_is_named_by_verify(root: Path) -> None:
    folder = prepare(recipe(root), TOKENIZER) / "train"
    Corpus.open(folder).verify()
    file = folder / "000001" / "tokens.npy"
    file.write_bytes(file.read_bytes()[:-2] + b"\x01\x00")
    with pytest.raises(CorpusError, match=r"000001/tokens\.npy: damaged; delete the folder .*000001 and run"):
        Corpus.open(folder).verify()


def test_corpus_of_another_version_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare(recipe(root), TOKENIZER) / "train"
    monkeypatch.setattr(corpus_module, "FORMAT", 99)
    with pytest.raises(CorpusError, match="another version"):
        Corpus.open(folder)


def test_folder_without_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no prepared corpus"):
        Corpus.open(tmp_path)


def test_no_text_to_train_on_is_refused(root: Path) -> None:
    with pytest.raises(CorpusError, match="hold no text to train on"):
        prepare(recipe(root, sources=[]), TOKENIZER)
    write_texts(root / "data" / "a.jsonl", ["Ξένο κείμενο."])
    with pytest.raises(CorpusError, match="hold no text to train on"):
        prepare(recipe(root, sources=[{"path": "a.jsonl"}]), TOKENIZER)


def test_a_shard_or_a_heldout_source_without_known_words_does_no_harm(root: Path) -> None:
    write_texts(root / "data" / "a.jsonl", ["Ξένο κείμενο είναι."] * 200)
    write_texts(root / "data" / "dev.jsonl", ["Ξένο κείμενο εδώ."])
    folder = prepare(recipe(root, heldout=[{"path": "dev.jsonl"}]), TOKENIZER)
    corpus = Corpus.open(folder / "train")
    assert [shard["tokens"] for shard in corpus.manifest["shards"]][:2] == [0, 0]
    assert len(texts_of(corpus)) == corpus.num_documents == 40
    with pytest.raises(CorpusError, match="no prepared corpus"):
        Corpus.open(folder / "heldout" / "dev")


def test_full_disk_is_reported_with_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workers_module, "make_shard", full)
    with pytest.raises(CorpusError, match="No space left on device; when that is mended, run prepare again"):
        prepare(recipe(root), TOKENIZER)


def test_blank_lines_between_sentences_are_advised_against(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(6)
    (root / "data" / "lines.txt").write_text("\n\n".join(sentence(rng) for _ in range(50)))
    prepare(recipe(root, sources=[{"path": "lines.txt"}, {"path": "a.jsonl"}]), TOKENIZER)
    advice = [record.getMessage() for record in caplog.records if "blank line" in record.getMessage()]
    assert len(advice) >= 1
    assert all(message.startswith("lines:") for message in advice)


def test_sentences_that_had_to_be_cut_are_advised_about(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_texts(root / "data" / "b.jsonl", ["The film was good. I liked it.", "the film was good " * 40])
    prepare(recipe(root, heldout_fraction=0), TOKENIZER)
    assert "b: 1 sentences have more than 125 tokens and were cut" in caplog.text
    assert "a: " not in caplog.text


def test_unknown_words_are_advised_about(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_texts(root / "data" / "b.jsonl", ["The film was good.", "Ξένο κείμενο είναι."])
    prepare(recipe(root, heldout_fraction=0), TOKENIZER)
    assert "b: 1 sentences were dropped because the vocabulary does not know their words" in caplog.text
