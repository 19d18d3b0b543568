"""Which of the shipped networks a classifier starts from."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from training.classify.start import PRETRAINED, SENTIMENT, choose_start
from training.recipe import FinetuneConfig, Recipe, SourceConfig
from training.sources.documents import Document

GOOD, BAD = ("It is wonderful, I love it.", "Best purchase ever."), ("It broke at once.", "A waste of money, avoid it.")
TOPICS = ("Trains to the coast leave at noon.", "The soup needs salt and an onion.")


@pytest.mark.parametrize(
    ("texts", "labels", "start"),
    [((GOOD, BAD), ("yes", "no"), SENTIMENT), ((TOPICS, TOPICS), ("a", "b"), PRETRAINED)],
)
def test_choose_start_takes_the_classifier_whose_answers_tell_the_labels(
    texts: tuple[tuple[str, ...], ...], labels: tuple[str, str], start: Path
) -> None:
    rng = random.Random(1)
    source = SourceConfig(path="table.csv", label="label")
    finetune = FinetuneConfig(train=(source,), labels={label: label for label in labels})
    documents = [Document((f"{rng.choice(texts[i % 2])} {i}",), labels[i % 2]) for i in range(60)]
    assert choose_start(Recipe(name="mine", finetune=finetune), documents) == start
