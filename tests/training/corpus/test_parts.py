"""Labelled sources to the parts of their texts: labels, the split, what is left out, balance, augmentation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from training.corpus.inputs import labelled_inputs
from training.corpus.parts import ALL_ROWS, Part, split
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.errors import RunError, SourceError
from training.recipe import MULTI_LABEL, REGRESSION, SINGLE_LABEL, FinetuneConfig, Recipe, SourceConfig
from training.sources.documents import Document
from training.sources.split import text_hash

TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, "good", "bad"])

Row = dict[str, Any]
Texts = list[tuple[Document, Any]]


def write(folder: Path, rows: Iterable[Row], name: str = "texts", **settings: Any) -> SourceConfig:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceConfig(**{"path": f"{name}.jsonl", "label": "label"} | settings)


def recipe_of(folder: Path, *train: SourceConfig, soft_labels: Any = None, **changes: Any) -> Recipe:
    finetune = {"dev_fraction": 0.0, "augment_fraction": 0.0, "train": train} | changes
    return Recipe(name="labelled", data=folder, run=folder, finetune=finetune, soft_labels=soft_labels)  # type: ignore[arg-type]


def store(recipe: Recipe) -> PreparedText:
    return PreparedText(recipe.folder, prepare_labelled(recipe, TOKENIZER, recipe.folder))


def parts(recipe: Recipe) -> dict[str, Texts]:
    """Documents and labels of each part: `train`, `dev/<source>`, `test/<source>`."""
    text = store(recipe)
    sources = [shard.source for shard in text.shards for _ in range(shard.documents)]
    written, rows = text.read(np.arange(text.documents)), zip(text.column("parts"), text.column("changed"), strict=True)
    read = (row for each in labelled_inputs(recipe) for row in zip(each.documents, each.labels or [], strict=True))
    found: dict[str, Texts] = {}
    for source, stored, (part, is_changed) in zip(sources, written, rows, strict=True):
        if not is_changed:
            document, label = next(read)
            assert document.fields == stored.fields
        name = "train" if part == Part.TRAIN else f"{Part(part).name.lower()}/{source}"
        found.setdefault(name, []).append((replace(document, fields=stored.fields), label))
    return {name: part for name, part in found.items() if not name.startswith("left_out")}


def train_and_dev(recipe: Recipe) -> tuple[Texts, Texts]:
    found = parts(recipe)
    return found.get("train", []), [item for name, part in found.items() if name.startswith("dev/") for item in part]


def in_test(recipe: Recipe) -> Texts:
    return [item for name, part in parts(recipe).items() if name.startswith("test/") for item in part]


def texts(part: Texts) -> list[str]:
    return [document.text for document, _ in part]


def alphabet(**columns: Any) -> list[Row]:
    """26 rows with labels 0 and 1 in turn."""
    return [{"text": f"{c} good", "label": i % 2} | columns for i, c in enumerate(ascii_lowercase)]


# --- labels


def test_labels_that_map_to_nothing_are_left_out(tmp_path: Path) -> None:
    rows = [{"text": str(stars), "label": stars} for stars in range(1, 6)]
    labels = {"1": "BAD", "2": "BAD", "3": "", "4": "GOOD", "5": "GOOD"}
    train, _ = train_and_dev(recipe_of(tmp_path, write(tmp_path, rows), labels=labels))
    assert [(document.text, label) for document, label in train] == [("1", 0), ("2", 0), ("4", 1), ("5", 1)]


@pytest.mark.parametrize("number", [0, 3, 5])
def test_missing_label_is_counted_as_in_the_file(tmp_path: Path, number: int) -> None:
    rows = alphabet()[:6]
    rows[number]["label"] = None
    with pytest.raises(SourceError, match=f"line {number + 1}: has no label; fill it, remove the row, or"):
        parts(recipe_of(tmp_path, write(tmp_path, rows), dev_fraction=0.5))


def test_wrong_label_of_a_test_source_names_its_row(tmp_path: Path) -> None:
    source = write(tmp_path, [{"text": "bad", "label": 0}, {"text": "fine", "label": 1}])
    test = write(tmp_path, [{"text": "good", "label": 1}, {"text": "so-so", "label": 2}], name="test")
    with pytest.raises(SourceError, match=r"test\.jsonl, line 2: label '2' is not in "):
        parts(recipe_of(tmp_path, source, test=(test,)))


def test_label_whose_texts_are_all_in_test_or_in_dev_is_an_error(tmp_path: Path) -> None:
    in_dev, in_train = sorted("xy", key=text_hash)
    rows = [{"text": f"{i}", "label": i % 2 * (i > 1), "film": in_dev if i % 2 else in_train} for i in range(8)]
    source = write(tmp_path, rows)
    parts(recipe_of(tmp_path, source))
    message = "has no text labelled POSITIVE: .* are all its texts in finetune.test, held out .* or in dev"
    with pytest.raises(RunError, match=message):
        parts(recipe_of(tmp_path, source, test=(write(tmp_path, rows[1::2], name="test"),)))
    with pytest.raises(RunError, match=message):
        parts(recipe_of(tmp_path, write(tmp_path, rows, group="film"), dev_fraction=1e-9))


# --- the split


def test_split_of_a_table() -> None:
    low, middle, high = 1, 2**62, 2**63
    table = [  # source, text, group, label, whether it is the row before in another form, part
        (0, 50, 50, 1, False, Part.TEST),
        (1, 10, low, 0, False, Part.DEV),
        (1, 10, low, 0, True, Part.LEFT_OUT),  # dev has the text as it is
        (1, 11, high, 1, False, Part.LEFT_OUT),
        (1, 11, high, 1, True, Part.TRAIN),  # in place of the row before
        (1, 11, high, 1, False, Part.LEFT_OUT),  # again
        (1, 10, high, 0, False, Part.LEFT_OUT),  # a text of dev
        (1, 12, low, 1, False, Part.DEV),
        (1, 50, low, 1, False, Part.LEFT_OUT),  # a text of test
        (1, 60, middle, 0, False, Part.TRAIN),
        (1, 61, high, 0, False, Part.LEFT_OUT),  # with both labels
        (1, 61, high, 1, False, Part.LEFT_OUT),
        (2, 70, 70, -1, False, Part.TRAIN),
        (2, 70, 70, -1, False, Part.TRAIN),  # without a label, repetitions do not count
        (2, 71, low, -1, False, Part.LEFT_OUT),  # a group of dev
    ]
    source = SourceConfig(path="a.csv", label="label")
    sources = [(use, source) for use in ("test", "train", "unlabelled")]
    config = FinetuneConfig(test=(source,), train=(source,), dev_fraction=0.2)
    numbers, texts, groups, labels, changed, expected = map(np.array, zip(*table, strict=True))
    columns = {"sources": numbers, "labels": labels, "changed": changed, "domains": np.array([b""] * len(table))}
    columns |= {"texts": texts.astype(np.uint64), "groups": groups.astype(np.uint64)}
    found = split(columns, sources, config, lambda row: Document((f"row {row}",)))
    assert [Part(part) for part in found] == [Part(part) for part in expected]


@pytest.mark.parametrize("problem_type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION])
def test_dev_and_test_have_the_share_of_each_label(tmp_path: Path, problem_type: str) -> None:
    counts = {"0": 200, "1": 50, "2": 8, "3": 2, "4": 1}
    several = problem_type == MULTI_LABEL  # the frequent label is beside each rare one
    rows = [
        {"text": f"{label} {i}", "label": ["0", label] if several else label}
        for label, count in counts.items()
        for i in range(count)
    ]
    labels = {} if problem_type == REGRESSION else {label: f"label {label}" for label in counts}
    fractions = {"dev_fraction": 0.1, "test_fraction": 0.2, "problem_type": problem_type, "labels": labels}
    found = parts(recipe_of(tmp_path, write(tmp_path, rows), **fractions))
    held = {name: Counter(text[0] for text in texts(part)) for name, part in found.items()}
    assert [held[name].total() for name in ("test/texts", "dev/texts", "train")] == [52, 26, 183]
    if problem_type != REGRESSION:
        assert held["test/texts"] == {"0": 40, "1": 10, "2": 2}
        assert held["dev/texts"] == {"0": 20, "1": 5, "2": 1}
    others = parts(recipe_of(tmp_path, write(tmp_path, rows[:40] + rows[41:]), **fractions))
    assert all(len({*texts(part)} - {*texts(others[name])}) <= 3 for name, part in found.items())


def test_all_rows_are_the_texts_of_train_dev_and_test_fraction_but_not_of_test_tables(tmp_path: Path) -> None:
    rows, test = alphabet(), write(tmp_path, [{"text": "a good", "label": 0}], "test")
    again = [rows[3], {"text": "f good", "label": 0}]  # a repetition, and a contradiction
    source = write(tmp_path, rows + again)
    for tested, expected in ((), 25), ((test,), 24):
        recipe = recipe_of(tmp_path, source, test=tested, dev_fraction=0.3, test_fraction=0.3)
        record = prepare_labelled(recipe, TOKENIZER, recipe.folder)
        places = (), (recipe.folder / ALL_ROWS,)
        text, whole = (PreparedText(recipe.folder, record, places=each) for each in places)
        assert (text.column("parts") == Part.TRAIN).sum() < 18
        chosen = (whole.column("parts") == Part.TRAIN).nonzero()[0].tolist()
        found = [document.text for document in text.read(chosen)]
        assert len(found) == len({*found} - {"f good"}) == expected
        assert ("a good" in found) == (not tested)


@pytest.mark.parametrize("treebank", ["kept", "both"])
def test_phrases_are_in_the_part_of_the_longest_text_that_contains_them(tmp_path: Path, treebank: str) -> None:
    sentences = [f"{c} film is n't {c} good" for c in ascii_lowercase]
    phrases = [sentence.rpartition(" ")[0] for sentence in sentences]
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(phrases + sentences)]
    source = write(tmp_path, rows, group="containing", treebank=treebank)
    train, dev = train_and_dev(recipe_of(tmp_path, source, dev_fraction=0.3))
    assert len(train) + len(dev) == (104 if treebank == "both" else 52)
    first_letters = [{text[0] for text in texts(part)} for part in (train, dev)]
    assert all(first_letters)
    assert not first_letters[0] & first_letters[1]


def test_group_in_dev_of_a_small_source_is_not_trained_on_from_another(tmp_path: Path) -> None:
    big = [{"text": f"big {c}", "label": i % 2, "film": c} for i, c in enumerate(ascii_lowercase)]
    small = [row | {"text": f"small {row['film']}"} for row in big if text_hash(row["film"]) > 2**63][:2]
    sources = write(tmp_path, big, "big", group="film"), write(tmp_path, small, "small", group="film")
    for order in (sources, sources[::-1]):
        train, dev = train_and_dev(recipe_of(tmp_path, *order, dev_fraction=0.3))
        assert sum("small" in text for text in texts(dev)) == 1
        assert not {document.group for document, _ in train} & {document.group for document, _ in dev}


def test_repetitions_among_test_texts_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    test = write(tmp_path, [{"text": f"good {i % 20}", "label": i % 2} for i in range(40)], "test")
    caplog.set_level("INFO")
    parts(recipe_of(tmp_path, write(tmp_path, alphabet()), test=(test,)))
    assert "test: of 40 texts, 0 to train on, 0 for dev, 40 for test" in caplog.messages


def test_test_texts_are_apart_from_train_and_dev_with_their_groups_and_repetitions(tmp_path: Path) -> None:
    rows = [{"text": f"{c} good {i}", "label": i % 2, "film": c} for c in ascii_lowercase for i in range(2)]
    source = write(tmp_path, rows, group="film")
    loud = write(tmp_path, [row | {"text": row["text"].upper(), "film": None} for row in rows], "loud", group="film")
    recipe = recipe_of(tmp_path, source, loud, dev_fraction=0.2, test_fraction=0.3)
    tested = [document for document, _ in in_test(recipe)]
    train, dev = train_and_dev(recipe)
    assert min(len(tested), len(train), len(dev)) > 4
    found = [{text_hash(text) for text in part} for part in ([d.text for d in tested], texts(train), texts(dev))]
    assert len(set.union(*found)) == sum(map(len, found)) == 52
    films = {document.group for document in tested if document.group}
    assert not films & {document.group for document, _ in (*train, *dev)}
    _, dev_alone = train_and_dev(recipe_of(tmp_path, source, dev_fraction=0.2))
    _, dev_beside = train_and_dev(recipe_of(tmp_path, source, dev_fraction=0.2, test_fraction=0.3))
    assert dev_alone == dev_beside


def test_repeated_text_is_trained_on_once_and_may_be_in_dev_as_often_as_it_occurs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rows = alphabet()
    loud = [row | {"text": row["text"].upper() + "!"} for row in rows]
    sources = write(tmp_path, [*rows, *rows], "twice"), write(tmp_path, loud, "loud")
    train, _ = train_and_dev(recipe_of(tmp_path, *sources))
    assert texts(train) == [row["text"] for row in rows]
    assert "twice: of 52 texts, 26 to train on, 0 for dev, 0 for test" in caplog.messages
    assert "loud: of 26 texts, 0 to train on, 0 for dev, 0 for test" in caplog.messages
    train, dev = train_and_dev(recipe_of(tmp_path, *sources, dev_fraction=0.3))
    assert 3 * len(train) + len(dev) == 78


def test_text_with_different_labels_is_told_and_not_trained_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = alphabet()
    others = [{"text": "A good!", "label": 1}, {"text": "a good", "label": 1}, {"text": "b good", "label": 0}]
    train, _ = train_and_dev(recipe_of(tmp_path, write(tmp_path, rows + others)))
    assert texts(train) == [row["text"] for row in rows[2:]]
    place = tmp_path / "texts.jsonl"
    assert (
        "texts: 2 texts occur with different labels and are not trained on; correct the labels, such as that of "
        f"'A good!' ({place}, line 27)"
    ) in caplog.messages


def test_dev_of_few_texts_is_warned_of_if_the_recipe_states_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for fraction in (0.0, None):
        parts(recipe_of(tmp_path, write(tmp_path, alphabet()), dev_fraction=fraction))
        assert "are in dev" not in caplog.text
    parts(recipe_of(tmp_path, write(tmp_path, alphabet()), dev_fraction=0.2))
    assert "only 5 of 26 texts are in dev, too few to choose weights or a temperature" in caplog.text


@pytest.mark.parametrize(("count", "expected"), [(100, 20), (300, 60), (500, 100), (1000, 100), (4000, 200)])
def test_dev_of_a_small_source_is_larger(count: int, expected: int) -> None:
    assert round(FinetuneConfig().dev_share(count) * count) == expected


# --- which texts are trained on, and how


def test_balance_keeps_the_rarest_label_and_a_multiple_of_the_others_per_domain(tmp_path: Path) -> None:
    counts = {("shop", 1): 600, ("shop", 0): 100, ("film", 1): 50, ("film", 0): 400}
    rows = [
        {"text": f"{domain} {label} {i}", "label": label, "domain": domain}
        for (domain, label), count in counts.items()
        for i in range(count)
    ]
    source = write(tmp_path, rows, by="domain", balance=2)
    train, _ = train_and_dev(recipe_of(tmp_path, source))
    kept = Counter((document.domain, label) for document, label in train)
    assert (kept["shop", 0], kept["film", 1]) == (100, 50)
    assert kept["shop", 1] == pytest.approx(200, abs=40)
    assert kept["film", 0] == pytest.approx(100, abs=30)
    assert texts(train_and_dev(recipe_of(tmp_path, source))[0]) == texts(train)
    everything = source.model_copy(update={"balance": None})
    assert len(train_and_dev(recipe_of(tmp_path, everything))[0]) == len(rows)


def test_augmented_texts_are_a_fraction_of_train_and_none_of_dev(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"i don't {n}", "label": n % 2} for n in range(300)]
    recipe = recipe_of(tmp_path, write(tmp_path, rows), dev_fraction=0.3, augment_fraction=0.25)
    caplog.set_level("INFO")
    train, dev = train_and_dev(recipe)
    assert f"texts: of 300 texts, {len(train)} to train on, {len(dev)} for dev, 0 for test" in caplog.messages
    changed = [text for text in texts(train) if text not in {row["text"] for row in rows}]
    assert 0.15 * len(train) < len(changed) < 0.4 * len(train)
    assert set(texts(dev)) <= {row["text"] for row in rows}
    assert texts(train_and_dev(recipe)[0]) == texts(train)


def test_augmented_texts_stay_in_the_group_of_their_other_spelling(tmp_path: Path) -> None:
    texts = [f"it was n't {letter} and I do not like it" for letter in ascii_lowercase]
    rows = [{"text": text, "label": n % 2} for n, text in enumerate(texts)]
    text = store(recipe_of(tmp_path, write(tmp_path, rows, treebank="both"), augment_fraction=0.5))
    trained = text.column("parts") == Part.TRAIN
    assert 5 < text.column("changed").sum() == text.column("changed")[trained].sum()
    assert set(Counter(text.column("groups")[trained].tolist()).values()) == {2}
