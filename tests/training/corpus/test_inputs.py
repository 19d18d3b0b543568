"""Labelled texts: labels, cuts, the split by group."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from string import ascii_lowercase

import pytest
from training.finetune.dataset import (
    LabelledTexts,
    assemble,
    joined,
    key_of_text,
    read_labelled,
    read_whole,
    split_sources,
)

from model.checkpoint import load_checkpoint
from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.conftest import MakeCheckpoint
from training.errors import RunError, SourceError
from training.recipe import FinetuneConfig, Recipe, SourceConfig
from training.sources.documents import Document


def write(folder: Path, rows: list[dict[str, object]]) -> SourceConfig:
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceConfig(path="texts.jsonl", label="label", group="film" if "film" in rows[0] else None)


def read(
    folder: Path, rows: list[dict[str, object]], tokenizer: Tokenizer, **changes: object
) -> tuple[LabelledTexts, LabelledTexts]:
    recipe = recipe_of(folder, write(folder, rows), **changes)
    (parts,) = read_labelled(recipe, tokenizer, positions=64)
    return parts


def recipe_of(folder: Path, source: SourceConfig, **changes: object) -> Recipe:
    finetune = {"dev_fraction": 0.0, "train": (source,)} | changes
    corpus = {"sources": [SourceConfig(path="none.jsonl")]}
    return Recipe(name="labelled", data=folder, corpus=corpus, finetune=finetune)  # type: ignore[arg-type]


def test_labels_are_numbered_in_the_order_of_the_recipe(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}, {"text": "a", "label": "neg"}]
    train, dev = read(tmp_path, rows, tokenizer, labels={"pos": "POSITIVE", "neg": "NEGATIVE"})
    assert [target.tolist() for target in train.targets] == [[1, 0], [0, 1], [0, 1]]
    assert len(dev) == 0


def test_a_label_outside_the_set_names_the_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"text": "good", "label": 1}, {"text": "bad", "label": 7}]
    with pytest.raises(SourceError, match=r"document 2: label '7' is none of '0', '1'; name every value"):
        read(tmp_path, rows, tokenizer)


def test_a_source_without_label_column_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path, [{"text": "good", "label": 1}])
    with pytest.raises(SourceError, match="the column of labels"):
        read_labelled(recipe_of(tmp_path, SourceConfig(path="texts.jsonl")), tokenizer, 64)


def test_texts_that_are_tested_are_not_trained_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "Good<br /><br />film", "label": 1}\n')
    rows = [
        {"text": "good\n\nfilm", "label": 1},
        {"text": "a good film", "label": 1},
        {"text": "bad", "label": 0},
    ]
    test = SourceConfig(path="test.jsonl", label="label")
    train, _ = read(tmp_path, rows, tokenizer, test=(test,))
    expected = [tokenizer.encode(text).input_ids for text in ("a good film", "bad")]
    assert [ids.tolist() for ids in train.input_ids] == expected


@pytest.mark.parametrize("text", ["Größe: überaus schön", "ÉTÉ À LA MER", "Отличный фильм", "αγαπημένος"])
def test_a_text_in_another_case_is_the_same_in_every_alphabet(text: str) -> None:
    keys = {key_of_text(Document(case, (case,))) for case in (text, text.upper(), text.lower())}
    assert len(keys) == 1


def test_a_wrong_label_of_a_test_is_found_before_anything_is_trained(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "good", "label": 1}\n{"text": "so-so", "label": 2}\n')
    rows: list[dict[str, object]] = [{"text": "bad", "label": 0}, {"text": "fine", "label": 1}]
    with pytest.raises(SourceError, match="test, document 2: label '2' is none of"):
        read(tmp_path, rows, tokenizer, test=(SourceConfig(path="test.jsonl", label="label"),))
    with pytest.raises(SourceError, match="test: fine-tuning needs the source's `label`"):
        read(tmp_path, rows, tokenizer, test=(SourceConfig(path="test.jsonl"),))


def test_no_text_is_in_both_train_and_dev(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A review that two products share, spelt in another way, in sources that overlap."""
    rows: list[dict[str, object]] = [
        {"text": f"{text} good", "label": number % 2, "film": f"{text} {film}"}
        for number, text in enumerate("abcdefghijklmnop")
        for film in (1, 2)
    ]
    source = write(tmp_path, rows)
    loud = [row | {"text": str(row["text"]).upper()} for row in rows]
    (tmp_path / "loud.jsonl").write_text("".join(json.dumps(row) + "\n" for row in loud))
    overlapping = SourceConfig(path="loud.jsonl", label="label")
    recipe = recipe_of(tmp_path, source, train=(source, overlapping), dev_fraction=0.2)
    parts = read_labelled(recipe, tokenizer, positions=64)
    train, dev = (
        {tuple(ids.tolist()) for part in side for ids in part.input_ids} for side in zip(*parts, strict=True)
    )
    assert dev
    assert train
    assert not train & dev
    assert len(train | dev) == 16


def test_both_spellings_of_a_text_are_in_the_same_part(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": f"it is n't ``{letter}''", "label": number % 2}
        for number, letter in enumerate(ascii_lowercase)
    ]
    source = write(tmp_path, rows).model_copy(update={"treebank": "both"})
    ((_, train, dev),) = split_sources(recipe_of(tmp_path, source, dev_fraction=0.3))
    assert len(train) + len(dev) == 2 * len(rows)
    for part in (train, dev):
        assert set(Counter(map(key_of_text, part)).values()) == {2}


def test_a_group_that_takes_much_of_a_source_into_dev_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[dict[str, object]] = [{"text": str(n), "label": n % 2, "film": n // 300} for n in range(600)]
    source = write(tmp_path, rows)
    split_sources(recipe_of(tmp_path, source, dev_fraction=0.05))
    assert "300 of 600 texts are in dev, since no group is split" in caplog.text
    caplog.clear()
    split_sources(recipe_of(tmp_path, source.model_copy(update={"group": None}), dev_fraction=0.05))
    assert "are in dev" not in caplog.text


@pytest.mark.parametrize("text", ["It isn't \"fine\", it's great", "it isn't ``fine'', it's great"])
def test_a_text_with_other_quotation_marks_is_the_same(text: str) -> None:
    typed = Document(text, (text,))
    phone = "It isn’t “fine”, it’s great"
    assert key_of_text(typed) == key_of_text(Document(phone, (phone,)))


def test_some_of_what_is_trained_on_has_typographic_marks(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, "'", "’"])
    rows: list[dict[str, object]] = [{"text": f"i don't {n}", "label": n % 2} for n in range(200)]
    train, dev = read(tmp_path, rows, tokenizer, dev_fraction=0.3, typographic_fraction=0.25)
    apostrophes = [tokenizer.ids(mark)[0] for mark in "'’"]
    straight, curly = (sum(mark in ids for ids in train.input_ids) for mark in apostrophes)
    assert straight + curly == len(train)
    assert 0.15 * len(train) < curly < 0.5 * len(train)
    assert all(apostrophes[0] in ids for ids in dev.input_ids)


def test_a_small_source_has_a_group_in_dev_but_not_its_only_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows: list[dict[str, object]] = [
        {"text": f"{film} good {i}", "label": i % 2, "film": film} for film in "abc" for i in range(2)
    ]
    train, dev = read(tmp_path, rows, tokenizer, dev_fraction=1e-9)
    assert (len(train), len(dev)) == (4, 2)
    assert len({int(ids[1]) for ids in dev.input_ids}) == 1
    for fraction in (1e-9, 0.999):
        train, dev = read(tmp_path, rows[:2], tokenizer, dev_fraction=fraction)
        assert (len(train), len(dev)) == (2, 0)


def test_a_label_that_no_text_has_is_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows: list[dict[str, object]] = [{"text": f"good {letter}", "label": 1} for letter in "abc"]
    with pytest.raises(RunError, match=r"no text of finetune\.train is labelled '0'; is a file sorted"):
        read(tmp_path, rows, tokenizer)


@pytest.mark.parametrize("number", range(6))
def test_an_error_counts_documents_as_the_file_does(tmp_path: Path, tokenizer: Tokenizer, number: int) -> None:
    rows: list[dict[str, object]] = [{"text": f"good {letter}", "label": 1} for letter in "abcdef"]
    rows[number]["label"] = None
    with pytest.raises(SourceError, match=f"document {number + 1}: has no label; fill it, or take the row out"):
        read(tmp_path, rows, tokenizer, dev_fraction=0.5)


def test_no_group_is_split_between_train_and_dev(tmp_path: Path, tokenizer: Tokenizer) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows: list[dict[str, object]] = [
        {"text": f"{letter} good", "label": i % 2, "film": letter} for letter in letters for i in range(3)
    ]
    train, dev = read(tmp_path, rows, tokenizer, dev_fraction=0.4)
    films = [{int(ids[1]) for ids in part.input_ids} for part in (train, dev)]
    assert not films[0] & films[1]
    assert len(films[0] | films[1]) == len(letters)
    assert len(train) + len(dev) == len(rows)
    assert 0 < len(dev) < len(train)


def test_the_split_is_the_same_in_every_run(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows: list[dict[str, object]] = [{"text": "good " * i, "label": i % 2} for i in range(1, 40)]
    first, again = (read(tmp_path, rows, tokenizer, dev_fraction=0.3)[1] for _ in range(2))
    assert [i.tolist() for i in first.input_ids] == [i.tolist() for i in again.input_ids]


@pytest.mark.parametrize(("truncation", "kept"), [("head", [10, 11, 12, 13]), ("head_tail", [10, 11, 18, 19])])
def test_a_long_text_keeps_the_ends_that_the_recipe_says(
    tokenizer: Tokenizer, truncation: str, kept: list[int]
) -> None:
    config = FinetuneConfig(max_length=6, truncation=truncation)  # type: ignore[arg-type]
    ids, types = assemble([list(range(10, 20))], config, tokenizer)
    assert ids.tolist() == [tokenizer.cls_id, *kept, tokenizer.sep_id]
    assert types.tolist() == [0] * 6


def test_a_pair_has_two_segments_and_loses_from_the_longer(tokenizer: Tokenizer) -> None:
    config = FinetuneConfig(max_length=9, truncation="head")
    ids, types = assemble([list(range(10, 20)), [30, 31]], config, tokenizer)
    sep = tokenizer.sep_id
    assert ids.tolist() == [tokenizer.cls_id, 10, 11, 12, 13, sep, 30, 31, sep]
    assert types.tolist() == [0] * 6 + [1] * 3


def test_training_encodes_as_serving_does(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "the film was good.<br /><br />and i loved it. " * 5
    for truncation in ("head", "head_tail"):
        rows = [{"text": text, "label": 1}, {"text": "bad", "label": 0}]
        train, _ = read(tmp_path, rows, tokenizer, max_length=20, truncation=truncation)
        served = tokenizer.encode(text, max_length=20, truncate=True, truncation=truncation)
        assert train.input_ids[0].tolist() == served.input_ids


def test_dev_and_test_are_read_as_they_are_served(
    tmp_path: Path, tokenizer: Tokenizer, save_sentiment: MakeCheckpoint
) -> None:
    rows = [{"text": f"good film {letter} " * 40, "label": i % 2} for i, letter in enumerate("abcdefgh")]
    train, dev = read(tmp_path, rows, tokenizer, max_length=20, dev_fraction=0.5)
    assert {len(ids) for ids in train.input_ids} == {20}
    assert {len(ids) for ids in dev.input_ids} == {64}
    served = load_checkpoint(save_sentiment(truncation="head_tail"))
    config = FinetuneConfig(max_length=20, truncation="head", labels={"0": "A", "1": "B"})
    whole = read_whole(write(tmp_path, rows), tmp_path, config, served)
    assert len(whole) == len(rows)
    expected = served.tokenizer.encode(rows[0]["text"], max_length=64, truncate=True, truncation="head_tail")
    assert whole.input_ids[0].tolist() == expected.input_ids


def test_batches_hold_every_text_once(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows: list[dict[str, object]] = [{"text": "good " * (i % 7 + 1), "label": i % 2} for i in range(150)]
    train, _ = read(tmp_path, rows, tokenizer)
    lengths = [n for batch in train.batches() for n in batch.packed.lengths]
    assert sorted(lengths) == sorted(len(ids) for ids in train.input_ids)
    assert joined([train, train], "both").tokens == 2 * train.tokens
