"""Which of the shipped networks a classifier starts from."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.training.classify.tables import write_csv
from training.classify.start import PRETRAINED, SENTIMENT, choose_start
from training.recipe import FinetuneConfig, Recipe, SourceConfig

GOOD, BAD = ("It is wonderful, I love it.", "Best purchase ever."), ("It broke at once.", "A waste of money, avoid it.")
TOPICS = ("Trains to the coast leave at noon.", "The soup needs salt and an onion.")


@pytest.mark.parametrize(
    ("texts", "labels", "start"),
    [((GOOD, BAD), ("yes", "no"), SENTIMENT), ((TOPICS, TOPICS), ("a", "b"), PRETRAINED)],
    ids=["opinions", "chance"],
)
def test_choose_start_takes_the_classifier_whose_answers_tell_the_labels(
    tmp_path: Path, texts: tuple[tuple[str, ...], ...], labels: tuple[str, str], start: Path
) -> None:
    rng = random.Random(1)
    rows = [{"text": f"{rng.choice(texts[i % 2])} {i}", "label": labels[i % 2]} for i in range(60)]
    write_csv(tmp_path / "table.csv", rows)
    source = SourceConfig(path=str(tmp_path / "table.csv"), label="label")
    finetune = FinetuneConfig(train=(source,), labels={label: label for label in labels})
    assert choose_start(Recipe(name="mine", finetune=finetune)) == start
