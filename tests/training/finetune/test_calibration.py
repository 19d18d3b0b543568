"""Calibration improves the scores on dev, or changes nothing."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from model import BertForSequenceClassification, Tokenizer, load_checkpoint
from tests.conftest import WORDS
from training.examples.labelled import LabelledTexts, encode_texts
from training.finetune import calibration
from training.finetune.calibration import calibrate
from training.metrics.classification import Answers, expected_calibration_error, predict_classification, reliability
from training.problems.choose import problem_of
from training.sources.documents import Document


@pytest.fixture
def model(sentiment: Path) -> BertForSequenceClassification:
    loaded = load_checkpoint(sentiment).model
    assert isinstance(loaded, BertForSequenceClassification)
    return loaded


def make_dev(tokenizer: Tokenizer, count: int, seed: int = 0) -> LabelledTexts:
    """Random texts with label 0."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS[:15], rng.integers(2, 12))) for _ in range(count)]
    documents = [Document((text,)) for text in texts]
    targets = np.tile(np.array([1, 0], np.float32), (count, 1))
    return encode_texts(documents, targets, "text", tokenizer, 64)


def label(model: BertForSequenceClassification, dev: LabelledTexts, wrong: int, seed: int = 0) -> LabelledTexts:
    """The texts with the labels that the model answers, and `wrong` others."""
    answers = predict_classification(model, dev)
    labels = answers.logits.argmax(1)[torch.tensor(answers.documents).argsort()].numpy()
    chosen = np.random.default_rng(seed).permutation(len(labels))[:wrong]
    labels[chosen] = 1 - labels[chosen]
    return dataclasses.replace(dev, targets=np.eye(2, dtype=np.float32)[labels])


@pytest.mark.parametrize("wrong", [0, 4, 12, 16])
def test_calibrate_with_too_few_right_or_wrong_answers_changes_nothing_and_says_what_it_needs(
    model: BertForSequenceClassification, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, wrong: int
) -> None:
    dev = label(model, make_dev(tokenizer, 16), wrong)
    before = model.classifier.weight.detach().clone()
    assert calibrate(model, {"dev": predict_classification(model, dev)}) == 1
    assert torch.equal(model.classifier.weight, before)
    assert f"not calibrated: {16 - wrong} of 16 answers on dev are right" in caplog.text
    assert "at least 5 must be right and as many wrong" in caplog.text


def test_calibrate_without_dev_changes_nothing(model: BertForSequenceClassification) -> None:
    assert calibrate(model, {}) == 1


def test_calibrate_lowers_the_loss_and_the_calibration_error_and_changes_no_answer(
    model: BertForSequenceClassification, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model.classifier.weight.data *= 2  # sure of itself
    dev = label(model, make_dev(tokenizer, 200), wrong=50)
    before = predict_classification(model, dev)
    temperature = calibrate(model, {"dev": predict_classification(model, dev)})
    after = predict_classification(model, dev)
    assert temperature > 1.5
    assert after.loss < before.loss
    decided = filter(None, (each.problem.decisions(each.scores, each.targets) for each in (before, after)))
    errors = [expected_calibration_error(reliability(*decisions)) for decisions in decided]
    assert errors[1] < 0.75 * errors[0]
    assert torch.equal(after.logits.argmax(1), before.logits.argmax(1))
    torch.testing.assert_close(after.logits * temperature, before.logits, rtol=0.02, atol=0.02)
    assert f"temperature {temperature:.3f}: loss on dev" in caplog.text


def test_calibrate_keeps_the_temperature_of_the_lowest_loss_whatever_the_bins_say(
    sentiment: Path, tokenizer: Tokenizer
) -> None:
    for seed in range(12):  # for some, the best temperature raises the calibration error of 24 texts
        model = load_checkpoint(sentiment).model
        assert isinstance(model, BertForSequenceClassification)
        model.classifier.weight.data *= 2
        dev = label(model, make_dev(tokenizer, 24, seed), wrong=6, seed=seed)
        before = predict_classification(model, dev)
        temperature = calibrate(model, {"dev": before})
        losses = {t: dataclasses.replace(before, logits=before.logits / t).loss for t in calibration.TEMPERATURES}
        assert temperature == min(losses, key=losses.__getitem__) != 1
        assert predict_classification(model, dev).loss == pytest.approx(losses[temperature], abs=1e-3)


def test_calibrate_limits_the_weight_of_a_large_source(
    sentiment: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "MAX_SOURCE_TEXTS", 40)
    temperatures = []
    for count in (40, 400):  # the large source has ten times as many copies of the same texts
        model = load_checkpoint(sentiment).model
        assert isinstance(model, BertForSequenceClassification)
        sure = label(model, make_dev(tokenizer, 40, seed=1), wrong=2)
        unsure = label(model, make_dev(tokenizer, 40, seed=2), wrong=18)
        answers = predict_classification(model, unsure)
        copies = {name: getattr(answers, name).repeat(count // 40, 1) for name in ("logits", "targets")}
        many = dataclasses.replace(answers, **copies, documents=list(range(count)))
        temperatures.append(calibrate(model, {"sure": predict_classification(model, sure), "many": many}))
    assert temperatures[0] == pytest.approx(temperatures[1])


def test_calibrate_of_several_labels_counts_each_decision(model: BertForSequenceClassification) -> None:
    targets = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).repeat(20, 1)
    logits = torch.tensor([[9.0, -9.0], [9.0, -9.0]]).repeat(20, 1)  # each second decision on the second label is wrong
    several = Answers(problem_of("multi_label_classification", ["a", "b"]), logits, targets, list(range(40)))
    assert calibrate(model, {"dev": several}) == pytest.approx(5)
    assert model.config.thresholds == [0.5, 0.1], "all texts have the first; sigmoid(-9 / 5) is 0.14"


def test_calibrate_of_a_regression_changes_nothing(
    model: BertForSequenceClassification, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = Answers(problem_of("regression", ["stars"]), torch.zeros(9, 1), torch.ones(9, 1), list(range(9)))
    assert calibrate(model, {"dev": numbers}) == 1
    assert not caplog.messages
