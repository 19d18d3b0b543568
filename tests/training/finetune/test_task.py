"""The loss of fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model import BertConfig, BertForSequenceClassification
from training.examples.batches import BatchShape, LabelledExample, collate_classification
from training.finetune.task import ClassificationLoss
from training.problems.choose import problem_of


def test_classification_loss_is_that_of_soft_labels() -> None:
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    model = BertForSequenceClassification(config.replace(id2label={0: "a", 1: "b"})).eval()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))  # it always answers b
    ids, soft = np.array([1, 2, 3]), np.array([0.9, 0.1], np.float32)
    examples = [LabelledExample(ids, np.zeros(3, np.int64), soft)] * 2
    batch = collate_classification(examples, BatchShape(tokens=10, sequences=4))
    value, metrics = ClassificationLoss(problem_of(None, ["a", "b"]), model, 2.0)(batch)
    ((loss, texts),) = metrics.tolist()
    assert texts == 2
    assert loss == pytest.approx(2 * (np.log1p(np.exp(1)) - 0.1), rel=0.01)
    value.backward()
    assert all(weight.grad is not None for weight in model.parameters()), "one without a gradient would only decay"
