"""A bag of words on the texts of a recipe."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from training.evaluate.baselines import bags_of_words
from training.report.bag_of_words import BagOfWords, num_words, word_pattern

from tests.training.conftest import MakeRecipe
from training.errors import RunError
from training.recipe import SourceConfig
from training.sources.documents import Document


def test_words_that_decide_the_label_are_learned(make_recipe: MakeRecipe) -> None:
    baseline = bags_of_words(make_recipe())
    assert baseline is not None
    assert baseline.accuracy["reviews"] >= 0.9
    assert 0 < baseline.texts < 80  # without the dev part


def test_the_same_texts_are_learned_once(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    first = bags_of_words(recipe)
    assert first is not None
    file = recipe.folder / "baseline.json"
    stored = json.loads(file.read_text())
    stored["baseline"]["accuracy"]["reviews"] = 0.25
    file.write_text(json.dumps(stored))
    again = bags_of_words(recipe)
    assert again is not None
    assert again.accuracy["reviews"] == 0.25


def test_other_texts_are_learned_anew(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    first = bags_of_words(recipe)
    source = SourceConfig(path="reviews.jsonl", label="label", limit=40)
    fewer = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"train": (source,)})})
    second = bags_of_words(fewer)
    assert first is not None
    assert second is not None
    assert second.texts < first.texts


def test_figures_follow_their_texts_when_test_sets_change_names(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    few, many = (SourceConfig(path=f"{name}.jsonl", label="label", limit=4) for name in ("test", "reviews"))

    def accuracy(*names: str) -> dict[str, float]:
        test = tuple(
            source.model_copy(update={"name": name}) for name, source in zip(names, (few, many), strict=True)
        )
        changed = recipe.finetune.model_copy(update={"test": test})
        baseline = bags_of_words(recipe.model_copy(update={"finetune": changed}))
        assert baseline is not None
        return baseline.accuracy

    accuracy("a", "b")
    file = recipe.folder / "baseline.json"
    stored = json.loads(file.read_text())
    stored["baseline"]["accuracy"] = {"a": 0.25, "b": 0.5}
    file.write_text(json.dumps(stored))
    assert accuracy("a", "b") == {"a": 0.25, "b": 0.5}
    assert 0.25 not in accuracy("b", "a").values()
    assert set(accuracy("a", "c")) == {"a", "c"}


def test_texts_of_one_label_are_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"a good film {number}", "label": 1}) for number in range(20)]
    (tmp_path / "sorted.jsonl").write_text("\n".join(rows))
    recipe = make_recipe()
    source = SourceConfig(path=str(tmp_path / "sorted.jsonl"), label="label")
    sorted_ = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"train": (source,)})})
    with pytest.raises(RunError, match=r"no text of finetune\.train is labelled '0'"):
        bags_of_words(sorted_)


def test_a_bag_of_one_source_alone_does_not_learn_from_the_others(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    """Of the two sources the second says the contrary of the first, so that both together say nothing."""
    recipe, rng = make_recipe(), random.Random(5)

    def source(name: str, good: int, count: int) -> SourceConfig:
        labels = [rng.randrange(2) for _ in range(count)]
        texts = (f"{rng.choice('abcdef')} {'good' if label else 'bad'} film {rng.random()}" for label in labels)
        rows = (
            json.dumps({"text": text, "label": label if good else 1 - label})
            for text, label in zip(texts, labels, strict=True)
        )
        (tmp_path / f"{name}-{count}.jsonl").write_text("\n".join(rows))
        return SourceConfig(name=name, path=str(tmp_path / f"{name}-{count}.jsonl"), label="label")

    sources = {
        "train": (source("films", 1, 200), source("contrary", 0, 200)),
        "test": (source("films", 1, 50), source("contrary", 0, 50), source("other", 1, 50)),
    }
    update = {"finetune": recipe.finetune.model_copy(update=sources)}
    baseline = bags_of_words(recipe.model_copy(update=update))
    assert baseline is not None
    assert baseline.alone == {"films": 1, "contrary": 1}
    assert baseline.accuracy["films"] + baseline.accuracy["contrary"] < 1.5


def test_zero_texts_leave_it_out(make_recipe: MakeRecipe) -> None:
    assert bags_of_words(make_recipe("finetune.baseline_texts=0")) is None


def test_labels_get_probabilities_in_the_order_asked_for() -> None:
    texts = [Document(text, (text,), label) for text, label in [("good film", "1"), ("bad film", "0")] * 20]
    says = np.exp(BagOfWords.fit(texts, texts).log_probabilities(texts[:2], ["1", "unheard", "0"]))
    assert says.argmax(axis=1).tolist() == [0, 2]
    assert says.sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert says[:, 1].max() < 1e-6


def test_a_sure_answer_is_a_finite_one() -> None:
    texts = [Document(text, (text,), label) for text, label in [("good", "1"), ("bad", "0")] * 20]
    bag = BagOfWords.fit(texts, texts)
    bag.model.coef_ *= 100
    assert np.isfinite(bag.log_probabilities(texts[:2], ["0", "1"])).all()


@pytest.mark.parametrize(
    ("good", "bad"),
    [("这部电影很好看", "这部电影很难看"), ("หนังเรื่องนี้ดี", "หนังเรื่องนี้แย่"), ("おもしろい", "つまらない")],
)
def test_languages_without_spaces_have_words(good: str, bad: str) -> None:
    pairs = [
        (f"{before}{text}{before[::-1]}", label)
        for before in ("我的", "他是", "คน")
        for text, label in ((good, "1"), (bad, "0"))
    ]
    texts = [Document(text, (text,), label) for text, label in pairs]
    assert BagOfWords.fit(texts[:4], []).accuracy(texts[4:]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "এই সিনেমাটি খুব ভালো ছিল",
        "यह फिल्म बहुत अच्छी है और कहानी भी",
        "הַסֶּרֶט הָיָה טוֹב",
        "cafe\u0301 au lait",
        "i\u0307stanbul",
    ],
)
def test_vowel_signs_and_points_are_parts_of_words(text: str) -> None:
    assert TfidfVectorizer(token_pattern=word_pattern(), lowercase=False).build_analyzer()(text) == text.split()


def test_words_are_about_counted_where_nothing_parts_them() -> None:
    assert num_words("It's a good film, isn't it?") == 6
    assert num_words("这部电影非常好看。我喜欢") == 1 + 11 // 2


def test_words_of_languages_with_spaces_are_scikit_learns(data: Path) -> None:
    odd = "It's 2x a naïve_word, o.k.: Größe – ½ x² Ёлка 영화가 a1 b"
    text = (data / "reviews.jsonl").read_text() + odd
    settings: tuple[dict[str, str], ...] = ({"token_pattern": word_pattern()}, {})
    ours, theirs = (TfidfVectorizer(**own).build_analyzer()(text) for own in settings)
    assert ours == theirs


def test_texts_that_teach_a_bag_of_words_nothing_have_no_figure(
    make_recipe: MakeRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe()

    def baseline(**changes: object) -> object:
        changed = recipe.finetune.model_copy(update=changes)
        return bags_of_words(recipe.model_copy(update={"finetune": changed}))

    assert baseline(baseline_texts=1) is None
    assert "no figure of a bag of words: all 1 texts" in caplog.text
    rows = [json.dumps({"text": "🙂🙁"[n % 2] * (n + 1), "label": n % 2}) for n in range(40)]
    (tmp_path / "emoji.jsonl").write_text("\n".join(rows))
    assert baseline(train=(SourceConfig(path=str(tmp_path / "emoji.jsonl"), label="label"),)) is None
    assert "texts has a word of two letters" in caplog.text
