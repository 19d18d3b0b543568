"""Both contestants of `bench` compute the same loss of the same examples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForPreTraining

from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.training.texts import ribbon_text
from training.errors import RunError
from training.evaluate.bench import RandomText, bench, padded
from training.examples.batches import collate_pretraining
from training.examples.pairs import ExampleMaker, Vocabulary
from training.pretrain.task import pretraining_losses
from training.recipe import ExamplesConfig


def test_padded_examples_have_the_loss_of_packed_ones(pretrained: Path, tokenizer: Tokenizer) -> None:
    maker = ExampleMaker(
        ribbon_text(tokenizer), Vocabulary.of(tokenizer), ExamplesConfig(sequence_length=32), 1
    )
    examples = [maker(0, i) for i in range(8)]
    ours = load_checkpoint(pretrained).model
    assert isinstance(ours, BertForPreTraining)
    theirs = AutoModelForPreTraining.from_pretrained(pretrained).eval()
    batch = collate_pretraining(examples)
    with torch.no_grad():
        loss = pretraining_losses(ours, batch, batch.counts)[0]
        torch.testing.assert_close(loss, theirs(**padded(examples)).loss)


def test_random_text_fills_examples() -> None:
    text = RandomText.make(1000, 5, 40)
    assert len(text.ids) == text.sentence_starts[-1]
    assert text.document_starts[-1] == len(text.sentence_starts) - 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bench_prints_both_speeds_and_their_ratio() -> None:
    lines = bench("tiny", length=16, batch=2, steps=1, device_name="cpu").splitlines()
    assert len(lines) == 3
    assert all("tokens/s here (MFU" in line and "times as fast" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "2 examples and 0 steps: bench needs at least one of each"),
        ({"batch": 0}, "0 examples and 1 steps"),
        ({"length": 4000}, "examples of 4000 tokens: tiny takes 8 to 512"),
        ({"length": 7}, "examples of 7 tokens"),
    ],
)
def test_what_cannot_be_timed_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(RunError, match=message):
        bench("tiny", **({"length": 16, "batch": 2, "steps": 1} | changes), device_name="cpu")
