"""Figures of a classifier against hand-made answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from model import BertForSequenceClassification, PackedBatch, Tokenizer, load_checkpoint
from training.examples.labelled import encode_texts
from training.metrics.classification import (
    Answers,
    calibration_error_by_chance,
    expected_calibration_error,
    predict_classification,
    reliability,
)
from training.problems.choose import problem_of
from training.sources.documents import Document


def test_answers_summary_of_hand_made_logits() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
    answers = Answers(problem_of(None, ["a", "b"]), logits, torch.eye(2)[[0, 1, 1, 1]], [0, 1, 2, 3])
    confidence = 1 / (1 + np.exp(-2))
    assert answers.loss == pytest.approx(-0.5 * np.log(confidence) - 0.5 * np.log(1 - confidence))
    assert answers.summary() == {"accuracy": 0.5, "balanced_accuracy": 0.6667, "loss": round(answers.loss, 4)}


def test_reliability_of_honest_confidence_has_no_calibration_error() -> None:
    confidence = torch.full((10,), 0.8)
    right = torch.tensor([True] * 8 + [False] * 2)
    assert expected_calibration_error(reliability(confidence, right)) == pytest.approx(0, abs=1e-6)
    sure = reliability(torch.ones(4), torch.tensor([True, True, False, False]))
    assert expected_calibration_error(sure) == 0.5


@pytest.mark.parametrize("answers", [100, 3000])
def test_calibration_error_by_chance_is_that_of_honest_answers(answers: int) -> None:
    generator = torch.Generator().manual_seed(5)
    confidence = 0.5 + 0.5 * torch.rand(answers, generator=generator)
    errors = []
    for _ in range(200):
        right = torch.rand(answers, generator=generator) < confidence
        bins = reliability(confidence, right)
        errors.append(expected_calibration_error(bins))
    assert calibration_error_by_chance(bins) == pytest.approx(np.mean(errors), rel=0.06)


def test_calibration_error_by_chance_of_sure_answers_is_zero() -> None:
    sure = reliability(torch.ones(4), torch.tensor([True, True, False, False]))
    assert calibration_error_by_chance(sure) == 0


def test_predict_classification_reads_documents_as_text_and_as_pair(sentiment: Path, tokenizer: Tokenizer) -> None:
    model = load_checkpoint(sentiment).model
    assert isinstance(model, BertForSequenceClassification)
    fields = [("good film", "i loved it"), ("", "bad"), ("the film was boring and bad", "hated it")]
    documents = [Document(columns) for columns in fields]
    targets = np.eye(2, dtype=np.float32)[[1, 0, 0]]
    texts = encode_texts(documents, targets, "both", tokenizer, 64)
    model.train()
    answers = predict_classification(model, texts)
    assert model.training
    assert sorted(answers.documents) == [0, 0, 1, 2, 2], "a pair with an empty text is one text"
    assert answers.targets.tolist() == targets[answers.documents].tolist()

    assert predict_classification(model, texts, most=2).documents == [0, 0, 2, 2]
    pairs = predict_classification(model, dataclasses.replace(texts, read=["pair"] * 3))
    encoding = tokenizer.encode(*fields[2])
    batch = PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids], outputs=[[0]])
    with torch.no_grad():
        alone = model.eval()(batch)[0]
    torch.testing.assert_close(pairs.logits[pairs.documents.index(2)], alone, rtol=0.05, atol=0.05)
