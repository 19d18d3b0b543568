"""Bags of words on the texts of a recipe."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import training.evaluate.baselines as baselines_module
from tests.training.conftest import MakeRecipe
from tests.training.texts import review, sentence
from training.corpus.reader import PreparedText
from training.evaluate.baselines import Labelled, fit_bag, read_baseline, write_baseline
from training.evaluate.texts import reported_texts
from training.problems.choose import problem_of
from training.problems.single_label import SingleLabel
from training.recipe import Recipe, SourceConfig
from training.runtime.distributed import DistContext
from training.sources.documents import Document
from training.stages import Pipeline

PROBLEM = SingleLabel(("NEGATIVE", "POSITIVE"))


def labelled(*rows: tuple[str, int]) -> Labelled:
    return [(Document((text,)), label) for text, label in rows]


def reviews(count: int, seed: int) -> Labelled:
    rng = random.Random(seed)
    return labelled(*((review(rng, good=i % 2 == 1), i % 2) for i in range(count)))


def answers(train: Labelled, dev: Labelled, test: Labelled, problem: SingleLabel = PROBLEM) -> list[int]:
    """What a bag of words that learns from the first two parts answers to the third."""
    return fit_bag(problem, train, dev)([document.text for document, _ in test]).argmax(1).tolist()


def store(recipe: Recipe) -> PreparedText:
    labelled = Pipeline(recipe).labelled
    assert labelled.ensure(DistContext())
    return PreparedText.open(labelled.folder)


def test_baseline_answers_the_test_texts(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    write_baseline(recipe.finetune, text := store(recipe), tmp_path)
    found = read_baseline(tmp_path)
    assert set(found) == {"reviews"}
    wanted = torch.from_numpy(reported_texts(text, recipe.finetune)["reviews"].targets)
    right = found["reviews"].argmax(1) == wanted.argmax(1)
    assert right.float().mean() >= 0.9


def test_bag_that_can_learn_nothing_is_left_out_and_says_so(
    make_recipe: MakeRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [json.dumps({"text": "🙂🙁"[i % 2] * (i + 1), "label": i % 2}) for i in range(40)]
    (tmp_path / "emoji.jsonl").write_text("\n".join(rows))
    source = SourceConfig(path=str(tmp_path / "emoji.jsonl"), label="label")
    recipe = make_recipe()
    recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"train": (source,)})})
    write_baseline(recipe.finetune, store(recipe), tmp_path)
    assert read_baseline(tmp_path) == {}
    assert f"the report has no {PROBLEM.bag}: " in caplog.text


def test_bags_learn_from_texts_drawn_evenly(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    text = store(make_recipe())
    every, _ = baselines_module._parts(text)
    monkeypatch.setattr(baselines_module, "MAX_TEXTS", 3)
    few, _ = baselines_module._parts(text)
    assert few == [every[len(every) * i // 3] for i in range(3)]


def test_bag_learns_words_and_their_order() -> None:
    test = reviews(40, 3)
    assert np.mean(np.array(answers(reviews(80, 1), reviews(20, 2), test)) == [label for _, label in test]) >= 0.9
    train = labelled(("not good but bad", 0), ("not bad but good", 1)) * 20
    test = labelled(("it was not bad but good", 1), ("it was not good but bad", 0))
    assert answers(train, [], test) == [1, 0]


def test_bag_tells_three_labels_apart() -> None:
    rng = random.Random(4)
    train = labelled((review(rng, good=True), 2), (review(rng, good=False), 0), (sentence(rng), 1)) * 20
    assert answers(train, train[:6], train[:3], SingleLabel(("a", "b", "c"))) == [2, 0, 1]


def test_bag_without_anything_to_learn_is_a_value_error() -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # scikit-learn's own words
        fit_bag(PROBLEM, labelled(("...", 0), (",,,", 1)), [])


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_bag_of_several_labels_and_of_numbers(problem_type: str) -> None:
    problem = problem_of(problem_type, ["good", "bad"] if problem_type != "regression" else ["stars"])
    rng = random.Random(5)
    texts = [review(rng, good=i % 2 == 1) for i in range(80)]
    targets = [(float(i % 2), 1.0 - i % 2) for i in range(80)]
    part: Labelled = [
        (Document((text,)), target[: len(problem.names)]) for text, target in zip(texts, targets, strict=True)
    ]
    found = torch.from_numpy(fit_bag(problem, part[:60], part[60:70])(texts[70:]))
    wanted = torch.tensor([target for _, target in part[70:]])
    assert (found.round() == wanted).float().mean() >= 0.9


@pytest.mark.parametrize(
    ("good", "bad"),
    [("这部电影很好看", "这部电影很难看"), ("หนังเรื่องนี้ดี", "หนังเรื่องนี้แย่"), ("おもしろい", "つまらない")],
)
def test_bag_finds_words_in_scripts_without_spaces(good: str, bad: str) -> None:
    rows = [
        (f"{name}{text}{name[::-1]}", label) for name in ("我的", "他是", "คน") for text, label in ((good, 1), (bad, 0))
    ]
    part = labelled(*rows)
    assert answers(part[:4], [], part[4:]) == [1, 0]
