"""A bag of words of one kind of text."""

from __future__ import annotations

import random

import numpy as np
import pytest
from training.evaluate.naive_bayes import NaiveBayesBag

from tests.training.texts import review, sentence
from training.errors import RunError
from training.sources.documents import Document


def documents(count: int, seed: int) -> list[Document]:
    rng = random.Random(seed)
    texts = [(review(rng, good=number % 2 == 0), str(1 - number % 2)) for number in range(count)]
    return [Document(text, (text,), label) for text, label in texts]


def test_words_that_decide_the_label_are_learned() -> None:
    bag, test = NaiveBayesBag.fit(documents(80, 1), documents(20, 2)), documents(40, 3)
    guesses = bag.log_probabilities(test, ["0", "1"]).argmax(axis=1)
    assert np.mean([str(guess) == document.label for guess, document in zip(guesses, test, strict=True)]) >= 0.9


def test_languages_without_spaces_have_words() -> None:
    texts = [
        (f"{before}这部电影{what}好看", label)
        for before in "我他她"
        for what, label in (("很", "1"), ("不", "0"))
    ]
    bag = NaiveBayesBag.fit([Document(text, (text,), label) for text, label in texts], [])
    asked = [Document(text, (text,)) for text in ("你说这部电影不好看", "你说这部电影很好看")]
    assert bag.log_probabilities(asked, ["0", "1"]).argmax(axis=1).tolist() == [0, 1]


def test_texts_without_a_common_word_are_refused() -> None:
    texts = [
        Document(word, (word,), str(number % 2)) for number, word in enumerate(("one", "two", "three", "four"))
    ]
    with pytest.raises(RunError, match="none of 4 texts has a word that another has"):
        NaiveBayesBag.fit(texts, [])


def test_word_order_counts_up_to_three_words() -> None:
    texts = [("not good but bad", "0"), ("not bad but good", "1")] * 20
    bag = NaiveBayesBag.fit([Document(text, (text,), label) for text, label in texts], [])
    asked = [Document(text, (text,)) for text in ("it was not bad but good", "it was not good but bad")]
    assert bag.log_probabilities(asked, ["0", "1"]).argmax(axis=1).tolist() == [1, 0]


def test_labels_get_probabilities_in_the_order_asked_for() -> None:
    train = documents(40, 1)
    says = np.exp(NaiveBayesBag.fit(train, train).log_probabilities(train[:2], ["1", "unheard", "0"]))
    assert says.argmax(axis=1).tolist() == [0, 2]
    assert says.sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert says[:, 1].max() < 1e-6


def test_three_labels_are_told_apart() -> None:
    rng = random.Random(4)
    texts = [
        (review(rng, good=True), "good"),
        (review(rng, good=False), "bad"),
        (sentence(rng), "neither"),
    ] * 20
    train = [Document(text, (text,), label) for text, label in texts]
    says = np.exp(NaiveBayesBag.fit(train, train[:6]).log_probabilities(train[:3], ["good", "bad", "neither"]))
    assert says.argmax(axis=1).tolist() == [0, 1, 2]
    assert says.sum(axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


def test_a_label_that_dev_alone_has_does_not_stop_it() -> None:
    unheard = Document("a film", ("a film",), "2")
    bag = NaiveBayesBag.fit(documents(40, 1), [*documents(10, 2), unheard])
    assert np.isfinite(bag.log_probabilities([unheard], ["0", "1", "2"])).all()
