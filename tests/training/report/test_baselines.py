"""Bags of words on the texts of a recipe."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import training.report.baselines as baselines_module
from tests.training.conftest import MakeRecipe
from tests.training.texts import review, sentence
from training.problems.choose import problem_of
from training.problems.single_label import SingleLabel
from training.recipe import Recipe, SourceConfig
from training.report.baselines import Labelled, evaluate_bag, fit_bag, read_test
from training.sources.documents import Document

PROBLEM = SingleLabel(("NEGATIVE", "POSITIVE"))


def labelled(*rows: tuple[str, int]) -> Labelled:
    return [(Document((text,)), label) for text, label in rows]


def reviews(count: int, seed: int) -> Labelled:
    rng = random.Random(seed)
    return labelled(*((review(rng, good=i % 2 == 1), i % 2) for i in range(count)))


def answers(train: Labelled, dev: Labelled, test: Labelled, problem: SingleLabel = PROBLEM) -> list[int]:
    """What a bag of words that learns from the first two parts answers to the third."""
    return fit_bag(problem, train, dev)([document.text for document, _ in test]).argmax(1).tolist()


def scores(recipe: Recipe, **changes: object) -> dict[str, Tensor]:
    recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})
    return evaluate_bag(recipe, PROBLEM, read_test(recipe))


def test_bag_learns_the_words_that_decide_and_is_cached(
    make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe()
    first = scores(recipe)
    right = first["reviews"].argmax(1) == torch.tensor([label for _, label in read_test(recipe)["reviews"]])
    assert right.float().mean() >= 0.9
    with monkeypatch.context() as patch:
        patch.setattr(baselines_module, "fit_bag", None)
        assert torch.equal(scores(recipe)["reviews"], first["reviews"])
    fewer = SourceConfig(name="reviews", path="reviews.jsonl", label="label", limit=60)
    assert not torch.equal(scores(recipe, train=(fewer,))["reviews"], first["reviews"]), "other texts"


def test_bag_cache_is_not_used_for_test_sets_of_other_names(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    (test,) = recipe.finetune.test
    assert set(scores(recipe)) == {"reviews"}
    assert set(scores(recipe, test=(test.model_copy(update={"name": "other"}),))) == {"other"}


def test_bag_that_can_learn_nothing_is_left_out_and_says_so(
    make_recipe: MakeRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [json.dumps({"text": "🙂🙁"[i % 2] * (i + 1), "label": i % 2}) for i in range(40)]
    (tmp_path / "emoji.jsonl").write_text("\n".join(rows))
    source = SourceConfig(path=str(tmp_path / "emoji.jsonl"), label="label")
    assert scores(make_recipe(), train=(source,)) == {}
    assert f"the report has no {PROBLEM.bag}: " in caplog.text


def test_bags_learn_from_texts_drawn_evenly(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe()
    every, _ = baselines_module._parts(recipe)
    monkeypatch.setattr(baselines_module, "MAX_TEXTS", 3)
    few, _ = baselines_module._parts(recipe)
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
