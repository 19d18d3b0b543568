"""Documents to shards and back: splits, interruptions, what is refused."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.training.commands import ROOT
from training.corpus import inputs as inputs_module
from training.corpus import workers
from training.corpus.inputs import HELDOUT, pretraining_inputs
from training.corpus.parts import TRAIN, Part
from training.corpus.prepare import entropy, prepare, prepare_labelled
from training.corpus.reader import PreparedText, TextWindow
from training.errors import CorpusError
from training.recipe import (
    NUM_SPECIAL_TOKENS,
    ExamplesConfig,
    FinetuneConfig,
    PretrainConfig,
    Recipe,
    SourceConfig,
)
from training.runtime.files import DONE, write_json
from training.sources.documents import documents
from training.sources.split import text_hash

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
    write_rows(file, texts)
    return texts


def write_rows(file: Path, texts: list[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def recipe(root: Path, **corpus: Any) -> Recipe:
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl"}]
    settings = {"sources": sources, "heldout_fraction": 0.1} | corpus
    return Recipe(name="test", data=root / "data", run=root / "runs", corpus=settings)  # type: ignore[arg-type]


def prepared(recipe: Recipe, tokenizer: Tokenizer = TOKENIZER, **options: bool) -> Path:
    """A folder in that of the recipe's run, with its corpus."""
    folder = recipe.folder / "corpus"
    write_json(folder / DONE, prepare(recipe, tokenizer, folder, **options))
    return folder


def prepared_labelled(recipe: Recipe) -> PreparedText:
    """Its labelled text."""
    return PreparedText(recipe.folder / "labelled", prepare_labelled(recipe, TOKENIZER, recipe.folder / "labelled"))


def named(recipe: Recipe, name: str) -> Recipe:
    """The recipe with another folder."""
    return recipe.model_copy(update={"name": name})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources of 60 and 40 documents, and shards so small that each source needs several."""
    write_documents(tmp_path / "data" / "a.jsonl", 60, seed=1)
    write_documents(tmp_path / "data" / "b.jsonl", 40, seed=2)
    monkeypatch.setattr(inputs_module, "SHARD_CHARACTERS", 2000)
    return tmp_path


def window(folder: Path, use: str = TRAIN, source: str = "") -> TextWindow:
    """All shards of a part of a prepared folder."""
    text = PreparedText(folder, use=use, source=source)
    return text.window(range(len(text.shards)))


def texts_of(folder: Path, use: str = TRAIN, source: str = "", tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    """Each document, its sentences joined by spaces."""
    text, found = window(folder, use, source), []
    for begin, end in zip(text.document_starts[:-1], text.document_starts[1:], strict=True):
        first, last = text.sentence_starts[begin], text.sentence_starts[end]
        words = map(tokenizer.token, text.tokens(int(first), int(last)).tolist())
        found.append(" ".join(words).replace(" .", "."))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def as_read(texts: list[str]) -> list[str]:
    return [text.replace("\n", " ").lower() for text in texts]


# --- shards


def test_prepare_keeps_every_document_in_order_over_several_shards(root: Path) -> None:
    folder = prepared(recipe(root, heldout_fraction=0))
    written = [document.text for s in recipe(root).corpus.sources for document in documents(s, root / "data")]
    assert len(PreparedText(folder).shards) > 5
    assert texts_of(folder) == as_read(written)
    assert not texts_of(folder, HELDOUT)


def test_prepare_boundaries_are_those_of_sentences_and_documents(root: Path) -> None:
    folder = prepared(recipe(root))
    text, opened = window(folder), PreparedText(folder, use=TRAIN)
    assert (text.sentence_starts[0], text.sentence_starts[-1]) == (0, opened.tokens)
    assert (text.document_starts[0], text.document_starts[-1]) == (0, len(text.sentence_starts) - 1)
    assert len(text.document_starts) == opened.documents + 1
    assert set(np.diff(text.sentence_starts)) == {6}
    firsts = [int(text.tokens(first, first + 1)[0]) for first in text.sentence_starts[:-1].tolist()]
    assert set(firsts) == {TOKENIZER.token_id("the")}


def test_prepare_counts_agree_with_the_arrays_and_per_source(root: Path) -> None:
    folder = prepared(recipe(root))
    text, *parts = (PreparedText(folder, use=TRAIN, source=source) for source in ("", "a", "b"))
    for total, counts in ((text.tokens, "tokens"), (text.documents, "documents")):
        assert sum(getattr(part, counts) for part in parts) == total
    assert text.token_counts().sum() == text.tokens
    assert text.unigram_entropy == pytest.approx(entropy(text.token_counts()))
    assert 2 < text.unigram_entropy < math.log(TOKENIZER.vocab_size)


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([4, 0, 4, 4, 4])) == pytest.approx(math.log(4))
    assert entropy(np.array([7])) == 0


def test_prepare_stores_ids_of_a_large_vocabulary_in_32_bits(root: Path) -> None:
    large = Tokenizer.from_vocab([*SPECIAL_TOKENS, *(f"w{i}" for i in range(70_000)), *TOKENIZER.vocab[5:]])
    narrow = window(prepared(recipe(root)))
    assert narrow.tokens(0, 6).dtype == np.uint16
    wide = window(prepared(named(recipe(root), "large"), large))
    assert wide.tokens(0, 6).dtype == np.uint32
    assert np.array_equal(wide.sentence_starts, narrow.sentence_starts)


def test_prepare_does_not_split_lines_that_are_sentences(root: Path) -> None:
    (root / "data" / "lines.txt").write_text("The film. The plot was good\nthe joke\n\nThe hero was bad\nthe end")
    source = {"path": "lines.txt", "lines": "sentence"}
    text = window(prepared(recipe(root, sources=[source], heldout_fraction=0)))
    assert np.diff(text.sentence_starts).tolist() == [7, 2, 4, 2]
    assert text.document_starts.tolist() == [0, 2, 4]


# --- train and held-out


def test_prepare_puts_equal_texts_in_one_part(root: Path) -> None:
    texts = write_documents(root / "data" / "a.jsonl", 50, seed=3)
    write_rows(root / "data" / "b.jsonl", [f"  {text.upper()} " for text in texts])
    folder = prepared(recipe(root, heldout_fraction=0.4))
    train = set(texts_of(folder))
    heldout = [set(texts_of(folder, HELDOUT, name)) for name in ("a", "b")]
    assert heldout[0] == heldout[1]
    assert not train & heldout[0]


def parts_of(recipe: Recipe) -> tuple[set[str], set[str]]:
    """Texts to train on, and held-out ones."""
    train: set[str] = set()
    heldout: set[str] = set()
    for shard in pretraining_inputs(recipe):
        (train if shard.use == TRAIN else heldout).update(document.text for document in shard.documents)
    return train, heldout


def test_pretraining_inputs_put_a_text_of_several_groups_in_one_part(tmp_path: Path) -> None:
    own = [{"film": film, "text": f"a text of {film}"} for film in ascii_lowercase]
    shared = [{"film": film, "text": "the same words"} for film in ascii_lowercase]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(map(json.dumps, shared + own)))
    train, heldout = parts_of(recipe(tmp_path, sources=[{"path": "a.jsonl", "group": "film"}], heldout_fraction=0.3))
    assert min(len(train), len(heldout)) > 5
    assert not train & heldout


def test_pretraining_inputs_put_a_text_of_two_sources_in_one_part(tmp_path: Path) -> None:
    texts = [f"a text about {letter}" for letter in ascii_lowercase]
    write_rows(tmp_path / "data" / "a.jsonl", texts)
    rows = [json.dumps({"author": f"author {n % 5}", "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "data" / "b.jsonl").write_text("\n".join(rows))
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl", "group": "author"}]
    for order in (sources, sources[::-1]):
        train, heldout = parts_of(recipe(tmp_path, sources=order, heldout_fraction=0.3))
        assert min(len(train), len(heldout)) > 5
        assert not train & heldout


def test_pretraining_inputs_do_not_train_on_what_a_small_source_of_the_same_texts_holds_out(tmp_path: Path) -> None:
    texts = [f"a text about {letter}" for letter in ascii_lowercase]
    write_rows(tmp_path / "data" / "a.jsonl", texts)
    write_rows(tmp_path / "data" / "b.jsonl", [text for text in texts if text_hash(text) > 2**63][:2])
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl"}]
    for order in (sources, sources[::-1]):
        train, heldout = parts_of(recipe(tmp_path, sources=order, heldout_fraction=0.3))
        assert min(len(train), len(heldout)) > 2
        assert not train & heldout


def test_pretraining_inputs_leave_out_groups_of_heldout_sources(tmp_path: Path) -> None:
    rows = [json.dumps({"film": film, "text": f"{film} is {how}"}) for film in "ab" for how in ("good", "bad")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "data" / "dev.jsonl").write_text(rows[0])
    source = {"path": "a.jsonl", "group": "film"}
    train, heldout = parts_of(recipe(tmp_path, sources=[source], heldout=[source | {"path": "dev.jsonl"}]))
    assert (train, heldout) == ({"b is good", "b is bad"}, {"a is good"})


@pytest.mark.parametrize("from_network", [False, True])
@pytest.mark.parametrize("pretrained", [None, Path("network")])
@pytest.mark.parametrize(
    "split",
    [
        {"test": ({"path": "test.jsonl", "label": "label"},), "dev_fraction": 0.0},
        {"test": ({"path": "test.jsonl", "label": "label"},), "dev_fraction": 0.2},
        {"test_fraction": 0.2, "dev_fraction": 0.0},
        {"test_fraction": 0.2, "dev_fraction": 0.2},
        {"dev_fraction": 0.2},
    ],
)
def test_pretraining_inputs_from_a_network_leave_out_the_texts_that_the_classifier_holds_out(
    tmp_path: Path, split: dict[str, Any], pretrained: Path | None, *, from_network: bool
) -> None:
    rows = [{"text": f"a text about {a}{b}", "film": a, "label": "xy".index(b)} for a in ascii_lowercase for b in "xy"]
    rows += [{"text": f"a text that is not labelled {a}", "film": a, "label": "?"} for a in ascii_lowercase]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "data" / "test.jsonl").write_text(json.dumps({"text": " A  text about bx", "label": 1}))
    train = {"path": "a.jsonl", "label": "label", "group": "film"}
    labels = {"0": "NO", "1": "YES", "?": ""}
    config = FinetuneConfig(train=(train,), labels=labels, pretrained=pretrained, **split)  # type: ignore[arg-type]
    made = recipe(tmp_path, sources=[{"path": "a.jsonl"}], heldout_fraction=0.1)
    network = tmp_path if from_network else None
    made = made.model_copy(update={"finetune": config, "pretrain": PretrainConfig(start=network)})

    text = prepared_labelled(made)
    hashes, column = text.column("texts"), text.column("parts")
    parts = {part.name.lower(): set(hashes[column == part].tolist()) for part in Part}
    trained, heldout = ({text_hash(text) for text in texts} for texts in parts_of(made))
    everything = {text_hash(str(row["text"])) for row in rows}
    assert parts["dev"] | parts["test"]
    assert heldout
    if from_network:
        assert not trained & (parts["dev"] | parts["test"])
        assert not heldout & parts["test"]
        assert parts["train"] <= trained | heldout
    else:
        assert trained | heldout == everything
        assert trained & (parts["dev"] | parts["test"])


def test_prepare_leaves_documents_of_heldout_sources_out_of_train(root: Path) -> None:
    shared = write_documents(root / "data" / "a.jsonl", 30, seed=4)
    write_rows(root / "data" / "dev.jsonl", [shared[3], shared[7].upper(), "The plot was good."])
    settings = {"heldout": [{"path": "dev.jsonl"}], "sources": [{"path": "a.jsonl"}], "heldout_fraction": 0.5}
    folder = prepared(recipe(root, **settings))
    assert texts_of(folder) == as_read(shared[:3] + shared[4:7] + shared[8:])
    assert len(texts_of(folder, HELDOUT, "dev")) == len(texts_of(folder, HELDOUT)) == 3


def test_prepare_holds_out_one_document_of_a_small_source_and_never_the_only_one(root: Path) -> None:
    write_rows(root / "data" / "a.jsonl", ["The film was good.", "The plot was bad.", "The film  was GOOD."])
    write_rows(root / "data" / "b.jsonl", ["The hero was bad."])
    folder = prepared(recipe(root, heldout_fraction=1e-9))
    sides = [texts_of(folder), texts_of(folder, HELDOUT, "a")]
    assert sorted({*sides[0]} - {"the hero was bad."} | {*sides[1]}) == [
        "the film was good.",
        "the plot was bad.",
    ]
    assert not texts_of(folder, HELDOUT, "b")


# --- interruptions


class Killed(BaseException):
    """Stands for a signal: nothing in the program expects it."""


def killed_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let that many shards be made, then end in the middle of one."""
    original = workers.make_shard
    calls = [0]

    def make_shard(encoder: Any, corpus: Path, shard_input: Any) -> Any:
        if calls[0] == count:
            half = corpus / "000099.tmp"
            half.mkdir(parents=True)
            (half / "tokens.npy").write_bytes(b"half a file")
            raise Killed
        calls[0] += 1
        return original(encoder, corpus, shard_input)

    monkeypatch.setattr(workers, "make_shard", make_shard)


def made_at(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*.npy")}


def test_prepare_continues_with_the_shards_that_an_interrupted_run_is_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(prepared(named(recipe(root), "whole")))
    folder = recipe(root).folder / "corpus"
    with monkeypatch.context() as patch:
        killed_after(patch, 4)
        with pytest.raises(Killed):
            prepared(recipe(root))
    with pytest.raises(CorpusError, match="not prepared, or not completely; run prepare"):
        PreparedText(folder)
    before = {name: time for name, time in made_at(folder).items() if "tmp" not in name}
    assert len(before) == 4
    assert prepared(recipe(root)) == folder
    assert before.items() <= made_at(folder).items()
    assert {k: v for k, v in contents(folder).items() if "tmp" not in k} == expected


def test_prepare_heldout_only_leaves_out_the_text_to_train_on(root: Path) -> None:
    folder = prepared(recipe(root), heldout_only=True)
    whole = prepared(named(recipe(root), "whole"))
    assert not texts_of(folder)
    assert texts_of(folder, HELDOUT) == texts_of(whole, HELDOUT)


def test_prepare_makes_lost_and_unreadable_shards_again(root: Path) -> None:
    folder = prepared(recipe(root))
    expected = contents(folder)
    (folder / "000001" / "tokens.npy").unlink()
    for name in ("000002/tokens.npy", "000003/columns.npz"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    (folder / "000004" / "columns.npz").write_bytes(b"")
    assert contents(prepared(recipe(root))) == expected


# --- workers


def test_make_shards_in_worker_processes_writes_the_same_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = contents(prepared(named(recipe(root), "one")))
    monkeypatch.setattr(workers, "SMALL_CHARACTERS", 0)
    assert contents(prepared(named(recipe(root), "two"))) == one


def test_make_shards_workers_start_without_torch() -> None:
    """torch takes seconds to import, in every worker."""
    script = "import sys, training.corpus.workers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


class DyingPool:
    """Stands for a pool whose process the system has ended."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def submit(self, *arguments: Any) -> None:
        raise BrokenProcessPool

    def shutdown(self, *, cancel_futures: bool) -> None:
        pass


def test_make_shards_dead_worker_says_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SMALL_CHARACTERS", 0)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", DyingPool)
    with pytest.raises(CorpusError, match=r"a worker process died.*run prepare again, it continues"):
        prepared(recipe(root))


# --- what is refused


def test_prepare_without_text_to_train_on_is_an_error(root: Path) -> None:
    write_rows(root / "data" / "a.jsonl", ["Ξένο κείμενο."])
    with pytest.raises(CorpusError, match="have no text to train on"):
        prepared(recipe(root, sources=[{"path": "a.jsonl"}]))


def test_prepare_passes_over_shards_and_heldout_sources_without_known_words(root: Path) -> None:
    write_rows(root / "data" / "a.jsonl", ["Ξένο κείμενο είναι."] * 200)
    write_rows(root / "data" / "dev.jsonl", ["Ξένο κείμενο εδώ."])
    folder = prepared(recipe(root, heldout=[{"path": "dev.jsonl"}]))
    text = PreparedText(folder, use=TRAIN)
    assert [shard.tokens for shard in text.shards][:2] == [0, 0]
    assert len(texts_of(folder)) == text.documents == 40
    assert not PreparedText(folder, use=HELDOUT).tokens


def test_prepare_on_a_full_disk_says_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workers, "make_shard", full)
    with pytest.raises(
        CorpusError,
        match=r"device; free some space on its disk\. Remove the cause, then run the same",
    ):
        prepared(recipe(root))


def test_prepare_warns_of_blank_lines_between_sentences(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(6)
    (root / "data" / "lines.txt").write_text("\n\n".join(sentence(rng) for _ in range(50)))
    prepared(recipe(root, sources=[{"path": "lines.txt"}, {"path": "a.jsonl"}]))
    advice = [record.getMessage() for record in caplog.records if "blank line" in record.getMessage()]
    assert len(advice) >= 1
    assert all(message.startswith("lines:") for message in advice)


@pytest.mark.parametrize("short_length", [32, 64, 128])
def test_prepare_cuts_sentences_that_are_longer_than_an_example_and_warns_of_them(
    root: Path, caplog: pytest.LogCaptureFixture, short_length: int
) -> None:
    write_rows(root / "data" / "b.jsonl", ["The film was good. I liked it.", "the film was good " * 40])
    made = recipe(root, heldout_fraction=0)
    examples = ExamplesConfig(short_length=short_length)
    folder = prepared(made.model_copy(update={"pretrain": PretrainConfig(examples=examples)}))
    assert "b: 1 sentences are longer than an example (pretrain.examples.short_length) and were cut" in caplog.text
    assert "a: " not in caplog.text
    longest = int(np.diff(window(folder).sentence_starts).max())
    assert short_length / 2 < longest <= short_length - NUM_SPECIAL_TOKENS


def test_prepare_warns_of_unknown_words(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_rows(root / "data" / "b.jsonl", ["The film was good.", "Ξένο κείμενο είναι."])
    prepared(recipe(root, heldout_fraction=0))
    message = (
        "b: 53% of the letters become [UNK] (1 sentences, mostly [UNK], are dropped): the vocabulary does not have"
    )
    assert message in caplog.text


@pytest.mark.parametrize("is_labelled", [False, True])
def test_prepare_warns_of_scripts_without_blanks_between_words(
    root: Path, caplog: pytest.LogCaptureFixture, is_labelled: bool
) -> None:
    rows = [{"text": f"{'film' * 26} {'film' * 27} film {i}", "label": i % 2} for i in range(8)]
    (root / "data" / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if is_labelled:
        finetune = FinetuneConfig(train=(SourceConfig(path="c.jsonl", label="label"),), dev_fraction=0)
        prepared_labelled(recipe(root).model_copy(update={"finetune": finetune}))
    else:
        with pytest.raises(CorpusError, match=r"corpus\.sources have no text to train on"):
            prepared(recipe(root, sources=[{"path": "c.jsonl"}], heldout_fraction=0))
    (advice,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert re.match(r"c: (98|100)% of the letters become \[UNK\].*: a word of more than 100 characters is", advice)


def test_prepare_labelled_keeps_the_domain_and_the_group_of_each_text(tmp_path: Path) -> None:
    shops = ["books", "", "é" * 3, "books"]
    rows = [{"text": f"good {i}", "label": i % 2, "shop": shop, "film": i // 2} for i, shop in enumerate(shops)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = SourceConfig(path="a.jsonl", label="label", by="shop", group="film")
    config = FinetuneConfig(train=(source,), dev_fraction=0.0, augment_fraction=0.0)
    made = prepared_labelled(Recipe(name="x", data=tmp_path, run=tmp_path, finetune=config))
    assert [domain.decode() for domain in made.column("domains").tolist()] == shops
    assert made.column("groups").tolist() == [text_hash(film) for film in "0011"]


def test_prepare_labelled_warns_of_words_that_the_network_does_not_know(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": "The film was good.", "label": 1}, {"text": "Ξένο κείμενο.", "label": 0}]
    (root / "data" / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    finetune = FinetuneConfig(train=(SourceConfig(path="c.jsonl", label="label"),), dev_fraction=0)
    text = prepared_labelled(recipe(root).model_copy(update={"finetune": finetune}))
    assert "c: 41% of the letters become [UNK]: the network's vocabulary does not have them. Start from" in caplog.text
    assert (text.column("parts") == Part.TRAIN).sum() == 2


def test_prepare_warns_of_few_heldout_documents(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepared(recipe(root, heldout_fraction=0.05))
    assert "documents are held out, so figures on them are mostly chance; raise corpus.heldout_fr" in caplog.text
    caplog.clear()
    write_documents(root / "data" / "dev.jsonl", 30, seed=9)
    prepared(named(recipe(root, heldout=[{"path": "dev.jsonl"}]), "more"))
    assert "are held out, so" not in caplog.text
