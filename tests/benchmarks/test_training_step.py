"""`bench`: both contestants compute the same loss of the same examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining

from benchmarks.training_step import RandomText, bench, main, padded
from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.training.texts import random_text
from training.errors import RunError
from training.examples.batches import BatchShape, collate_pretraining
from training.examples.masking import Vocabulary, mask
from training.examples.pairs import sample_pairs
from training.pretrain.task import PretrainingLoss
from training.recipe import ExamplesConfig


@pytest.mark.parametrize("shape", [None, BatchShape(tokens=384, sequences=12, masked=64, max_seqlen=64)])
def test_bench_padded_examples_have_the_loss_of_packed_ones(
    pretrained: Path, tokenizer: Tokenizer, shape: BatchShape | None
) -> None:
    text, rng = random_text(tokenizer), np.random.default_rng(1)
    pairs = sample_pairs(text, ExamplesConfig(short_length=32, long_fraction=0), rng)[:8]
    examples = mask(text, pairs, 0.15, Vocabulary.of(tokenizer), rng)
    ours = load_checkpoint(pretrained).model
    assert isinstance(ours, BertForPreTraining)
    theirs = AutoModelForPreTraining.from_pretrained(pretrained).eval()
    with torch.no_grad():
        loss, _ = PretrainingLoss(ours)(collate_pretraining(examples, shape))
        torch.testing.assert_close(loss, theirs(**padded(examples)).loss)


def test_bench_random_text_has_whole_sentences_and_documents() -> None:
    text = RandomText.make(1000, 5, 40)
    assert len(text.ids) == text.sentence_starts[-1]
    assert text.document_starts[-1] == len(text.sentence_starts) - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "2 examples and 0 steps: give at least one of each"),
        ({"batch": 0}, "0 examples and 1 steps"),
        ({"length": 4000}, "examples of 4000 tokens: tiny takes 8 to 512"),
        ({"length": 7}, "examples of 7 tokens"),
    ],
)
def test_bench_without_anything_to_time_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(RunError, match=message):
        bench("tiny", **({"length": 16, "batch": 2, "steps": 1} | changes), device_name="cpu")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bench_of_a_small_network(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tiny", "--length", "16", "--batch", "2", "--steps", "1", "--device", "cpu"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("tiny, 32 tokens per step in examples of up to 16, ")
    assert [line.split(":")[0] for line in lines] == ["mixed lengths", "all full"]
    assert all("tokens/s here (" in line and "times as fast" in line for line in lines)


def test_bench_of_an_unknown_network_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["huge"])
    assert "huge" in capsys.readouterr().err.splitlines()[-1]
