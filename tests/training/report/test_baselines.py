"""Bags of words on the texts of a recipe."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import training.report.baselines as baselines_module
from tests.training.conftest import MakeRecipe
from tests.training.texts import review, sentence
from training.recipe import Recipe, SourceConfig
from training.report.baselines import (
    Figures,
    Labelled,
    balanced_by_domain,
    evaluate_baselines,
    fit_naive_bayes,
    fit_tfidf,
    read_test,
)
from training.sources.documents import Document

TFIDF, NAIVE_BAYES = "TF-IDF + logistic regression", "naive Bayes (1-3-grams)"


def labelled(*rows: tuple[str, int]) -> Labelled:
    return [(Document((text,)), label) for text, label in rows]


def reviews(count: int, seed: int) -> Labelled:
    rng = random.Random(seed)
    return labelled(*((review(rng, good=i % 2 == 1), i % 2) for i in range(count)))


def answers(bag: object, part: Labelled) -> list[int]:
    return list(bag.predict([document.text for document, _ in part]))  # type: ignore[attr-defined]


def baselines(recipe: Recipe, **changes: object) -> dict[str, dict[str, Figures]]:
    recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})
    return evaluate_baselines(recipe, read_test(recipe))


def test_baselines_learn_the_words_that_decide_and_are_cached(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    first = baselines(recipe)
    assert set(first) == {TFIDF, NAIVE_BAYES}
    assert all(rows["reviews"]["accuracy"] >= 0.9 for rows in first.values())
    file = recipe.folder / "baselines.json"
    stored = json.loads(file.read_text())
    stored["figures"][TFIDF]["reviews"]["accuracy"] = 0.25
    file.write_text(json.dumps(stored))
    assert baselines(recipe)[TFIDF]["reviews"]["accuracy"] == 0.25
    fewer = SourceConfig(name="reviews", path="reviews.jsonl", label="label", limit=60)
    assert baselines(recipe, train=(fewer,))[TFIDF]["reviews"]["accuracy"] != 0.25, "other texts"


def test_baselines_cache_is_not_used_for_test_sets_of_other_names(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    (test,) = recipe.finetune.test
    assert set(baselines(recipe)[TFIDF]) == {"reviews"}
    assert set(baselines(recipe, test=(test.model_copy(update={"name": "other"}),))[TFIDF]) == {"other"}


def test_baselines_that_can_learn_nothing_are_left_out_and_say_so(
    make_recipe: MakeRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [json.dumps({"text": "🙂🙁"[i % 2] * (i + 1), "label": i % 2}) for i in range(40)]
    (tmp_path / "emoji.jsonl").write_text("\n".join(rows))
    source = SourceConfig(path=str(tmp_path / "emoji.jsonl"), label="label")
    assert baselines(make_recipe(), train=(source,)) == {}
    assert f"the report has no {TFIDF}: " in caplog.text


def test_bags_learn_from_texts_drawn_evenly(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe()
    every, _ = baselines_module._parts(recipe)
    monkeypatch.setattr(baselines_module, "MAX_TEXTS", 3)
    few, _ = baselines_module._parts(recipe)
    assert few == [every[len(every) * i // 3] for i in range(3)]


@pytest.mark.parametrize("fit", [fit_tfidf, fit_naive_bayes])
def test_baseline_learns_words_and_their_order(fit: object) -> None:
    assert callable(fit)
    test = reviews(40, 3)
    bag = fit(reviews(80, 1), reviews(20, 2))
    assert np.mean(np.array(answers(bag, test)) == [label for _, label in test]) >= 0.9
    bag = fit(labelled(("not good but bad", 0), ("not bad but good", 1)) * 20, [])
    assert answers(bag, labelled(("it was not bad but good", 1), ("it was not good but bad", 0))) == [1, 0]


@pytest.mark.parametrize("fit", [fit_tfidf, fit_naive_bayes])
def test_baseline_tells_three_labels_apart(fit: object) -> None:
    assert callable(fit)
    rng = random.Random(4)
    train = labelled((review(rng, good=True), 2), (review(rng, good=False), 0), (sentence(rng), 1)) * 20
    assert answers(fit(train, train[:6]), train[:3]) == [2, 0, 1]


@pytest.mark.parametrize("fit", [fit_tfidf, fit_naive_bayes])
def test_baseline_without_anything_to_learn_is_a_value_error(fit: object) -> None:
    assert callable(fit)
    with pytest.raises(ValueError):  # noqa: PT011  # scikit-learn's own words
        fit(labelled(("...", 0), (",,,", 1)), [])


@pytest.mark.parametrize(
    ("good", "bad"),
    [("这部电影很好看", "这部电影很难看"), ("หนังเรื่องนี้ดี", "หนังเรื่องนี้แย่"), ("おもしろい", "つまらない")],
)
def test_baseline_finds_words_in_scripts_without_spaces(good: str, bad: str) -> None:
    rows = [
        (f"{name}{text}{name[::-1]}", label) for name in ("我的", "他是", "คน") for text, label in ((good, 1), (bad, 0))
    ]
    part = labelled(*rows)
    for fit in (fit_tfidf, fit_naive_bayes):
        assert answers(fit(part[:4], []), part[4:]) == [1, 0]


def test_balanced_by_domain_weighs_domains_alike_and_labels_alike() -> None:
    labels = {"a": [0, 0, 0, 1], "b": [0, 1, 1], "c": [1]}
    part: Labelled = [(Document(("x",), domain=d), label) for d, each in labels.items() for label in each]
    answers = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])  # the only 1 of the first domain is answered 0
    assert balanced_by_domain(answers, part) == (0.75, {"a": 0.5, "b": 1.0}), "the last has one label only"
    assert balanced_by_domain(answers[-1:], part[-1:]) == (0, {})


def test_balanced_by_domain_of_texts_without_one() -> None:
    assert balanced_by_domain(torch.tensor([0, 0]), labelled(("x", 0), ("y", 1))) == (0.5, {"": 0.5})
