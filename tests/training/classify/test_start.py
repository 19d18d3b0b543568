"""Which of the shipped networks a classifier starts from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from training.classify.start import PRETRAINED, SENTIMENT, choose_start
from training.recipe import FinetuneConfig, Recipe, SourceConfig
from training.sources.documents import Document

GOOD, BAD = ("It is wonderful, I love it.", "Best purchase ever."), ("It broke at once.", "A waste of money, avoid it.")
TOPICS = ("Trains to the coast leave at noon.", "The soup needs salt and an onion.")


@pytest.mark.parametrize(
    ("texts", "labels", "problem", "start"),
    [
        ((GOOD, BAD), ("yes", "no"), "single_label_classification", SENTIMENT),
        ((TOPICS, TOPICS), ("a", "b"), "single_label_classification", PRETRAINED),
        ((GOOD, BAD), ("a", "a"), "single_label_classification", PRETRAINED),  # a sample without the other label
        ((GOOD, BAD), ("5", "1"), "regression", SENTIMENT),
        ((TOPICS, TOPICS), ("5", "1"), "regression", PRETRAINED),
        ((GOOD, BAD), (("praise", "late"), ("late",)), "multi_label_classification", SENTIMENT),
    ],
)
def test_choose_start_takes_the_classifier_whose_answers_tell_the_labels(
    texts: tuple[tuple[str, ...], ...], labels: tuple[Any, Any], problem: Any, start: Path
) -> None:
    rng = random.Random(1)
    source = SourceConfig(path="table.csv", label="label")
    names = dict.fromkeys(["yes", "no", "a", "b", "praise", "late"], "A") | {"no": "B", "b": "B", "praise": "B"}
    finetune = FinetuneConfig(train=(source,), labels=names, problem_type=problem)
    documents = [Document((f"{rng.choice(texts[i % 2])} {i}",), labels[i % 2]) for i in range(60)]
    assert choose_start(Recipe(name="mine", finetune=finetune), documents) == start
