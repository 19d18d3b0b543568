"""The bag of words scores texts that it has not read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.training.conftest import MakeRecipe
from tests.training.texts import review, sentence
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.finetune import bag as bag_module
from training.finetune.bag import bag_scores
from training.pipeline import Pipeline
from training.problems.base import Floats, Problem
from training.problems.choose import problem_of
from training.recipe import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from training.runtime.distributed import DistContext

TWO = problem_of(SINGLE_LABEL, ["NEGATIVE", "POSITIVE"])


def reviews(count: int, seed: int = 1) -> tuple[list[str], Floats]:
    rng = random.Random(seed)
    return [review(rng, good=i % 2 == 1) for i in range(count)], np.eye(2, dtype=np.float32)[np.arange(count) % 2]


def scores(
    texts: Sequence[str],
    targets: Floats,
    train: int | None = None,
    problem: Problem = TWO,
    groups: Sequence[int] | None = None,
) -> Floats:
    """The bag's scores if it is trained on the first texts, or on all of them."""
    numbers = np.arange(len(texts))
    return bag_scores(texts, targets, np.array(groups or numbers), numbers < (train or len(texts)), problem)


def accuracy(found: Floats, targets: Floats) -> float:
    return float((found.argmax(1) == targets.argmax(1)).mean())


def test_bag_scores_texts_out_of_fold_and_others_by_all_and_gives_the_same_bytes_again() -> None:
    texts, targets = reviews(120)
    unknown = np.where(np.arange(120)[:, None] < 80, targets, np.nan)
    found = scores(texts, unknown, 80)
    assert np.allclose(found.sum(1), 1, atol=1e-5)
    assert accuracy(found[:80], targets[:80]) > 0.8, "opinions are in the words"
    assert accuracy(found[80:], targets[80:]) > 0.9
    assert scores(texts, unknown, 80).tobytes() == found.tobytes()
    guessed = np.eye(2, dtype=np.float32)[np.random.default_rng(1).integers(2, size=120)]
    assert accuracy(scores(texts, guessed), guessed) < 0.7, "what is by chance cannot be known"


def test_bag_scores_are_a_column_of_the_labelled_text(make_recipe: MakeRecipe) -> None:
    pipeline = Pipeline(make_recipe())
    assert all(stage.ensure(DistContext()) for stage in (pipeline.labelled, pipeline.bag))
    text = PreparedText(pipeline.labelled.folder, places=[pipeline.bag.folder])
    found, parts, labels = (text.column(name) for name in ("target_probs", "parts", "labels"))
    assert found.shape == (text.documents, 2)
    assert np.isnan(found[parts == Part.LEFT_OUT]).all()
    for part in (Part.TRAIN, Part.DEV, Part.TEST):
        assert (found.argmax(1) == labels)[parts == part].mean() >= 0.85


def test_bag_has_read_no_text_of_a_group_that_it_scores() -> None:
    """In each group, the same words in another order, which tell its label to those who have read others of it."""
    rng, texts, labels = random.Random(0), [], []
    for film in range(40):
        words = ["".join(rng.choices("aeilnorst", k=6)) for _ in range(4)]
        opinion = ["good", "bad"][film % 2 if rng.random() < 0.7 else 1 - film % 2]
        texts += [" ".join(rng.sample([*words, opinion], k=5)) for _ in range(5)]
        labels += [film % 2] * 5
    targets = np.eye(2, dtype=np.float32)[labels]
    order = np.random.default_rng(0).permutation(200).tolist()
    assert accuracy(scores(texts, targets, groups=order), targets) > 0.95
    assert accuracy(scores(texts, targets, groups=[i // 5 for i in range(200)]), targets) < 0.85


@pytest.mark.parametrize("problem_type", [MULTI_LABEL, REGRESSION])
def test_bag_of_several_labels_and_of_numbers(problem_type: str) -> None:
    problem = problem_of(problem_type, ["good", "bad"] if problem_type == MULTI_LABEL else ["stars"])
    texts, targets = reviews(80)
    wanted = targets if problem_type == MULTI_LABEL else 4 * targets[:, :1] + 1
    found = problem.figures(torch.from_numpy(scores(texts, wanted, 60, problem)[60:]), torch.from_numpy(wanted[60:]))
    assert problem.merit(next(iter(found.values()))) > (0.9 if problem_type == MULTI_LABEL else -1.3)


def test_bag_tells_labels_apart_one_of_which_is_in_one_fold_only() -> None:
    rng = random.Random(4)
    texts = [review(rng, good=True), review(rng, good=False), sentence(rng)] * 20 + ["rare"]
    targets = np.eye(4, dtype=np.float32)[[0, 1, 2] * 20 + [3]]
    found = scores(texts, targets, problem=problem_of(SINGLE_LABEL, list("abcd")))
    assert accuracy(found[:60], targets[:60]) > 0.9
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("这部电影很好看", "这部电影很难看"),
        ("หนังเรื่องนี้ดี", "หนังเรื่องนี้แย่"),
        ("おもしろい", "つまらない"),
        ("not bad but good", "not good but bad"),
        ("🙂🙂", "🙁🙁"),
    ],
)
def test_bag_knows_words_their_order_and_parts_of_scripts_without_spaces(good: str, bad: str) -> None:
    texts = [f"{name}{text}{name[::-1]}" for name in ("我的", "他是", "คน", "ab ") for text in (good, bad)]
    targets = np.eye(2, dtype=np.float32)[[1, 0] * 4]
    assert accuracy(scores(texts, targets, 6)[6:], targets[6:]) == 1


def test_bag_of_too_many_characters_has_no_letters_and_draws_texts_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, targets = ["goodish", "badly", "goodly", "badish"] * 5, np.eye(2, dtype=np.float32)[[1, 0] * 10]
    texts, targets = [*texts, "goodest"], np.concatenate([targets, targets[:1]])
    assert scores(texts, targets, 20)[20, 1] > 0.6
    monkeypatch.setattr(bag_module, "MAX_CHARACTERS_WITH_LETTERS", 100)
    assert scores(texts, targets, 20)[20, 1] < 0.6
    monkeypatch.setattr(bag_module, "MAX_CHARACTERS", 50)
    assert np.isnan(scores(texts, targets, 20)[:, 0]).nonzero()[0].tolist() == [i for i in range(20) if i % 3]


def test_bag_of_one_group_scores_only_other_texts() -> None:
    texts, targets = reviews(40)
    found = scores(texts, targets, 30, groups=[7] * 40)
    assert np.isnan(found[:30]).all()
    assert accuracy(found[30:], targets[30:]) > 0.7
