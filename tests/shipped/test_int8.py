"""What the shipped weights answer in int8, beside float32. On the test data: `python -m benchmarks.int8`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import checkpoints
from benchmarks.int8 import logits, quantized
from model import load_checkpoint

FOLDER = Path(__file__).parent
PRETRAINED, SENTIMENT = checkpoints.directories(None)


def in_both(directory: Path, files: list[str]) -> tuple[Tensor, Tensor]:
    """Probabilities in float32 and in int8, of the classes or of the words for the first mask of a text."""
    checkpoint = load_checkpoint(directory)
    tokenizer = checkpoint.tokenizer
    rows = [row for name in files for row in json.loads((FOLDER / f"{name}.json").read_text())]
    encodings = [tokenizer.encode(row[0]) for row in rows]
    masks = [e.input_ids.index(tokenizer.mask_id) if tokenizer.mask_id in e.input_ids else 0 for e in encodings]
    exact = checkpoint.model.eval()
    first, other = (logits(network, encodings, masks).softmax(1) for network in (exact, quantized(exact)))
    return first, other


def test_int8_sentiment_is_that_of_float32() -> None:
    exact, int8 = in_both(SENTIMENT, ["opinions", "contractions", "everyday"])
    differences = (exact - int8).abs().amax(1)
    print(f"{len(exact)} opinions: differences {differences.mean():.4f} on average, {differences.max():.4f} at most")
    assert 0 < differences.mean() < 0.01
    assert (exact.argmax(1) == int8.argmax(1)).double().mean() >= 0.98


def test_int8_first_words_for_masks_are_those_of_float32() -> None:
    exact, int8 = in_both(PRETRAINED, ["cloze"])
    same = exact.argmax(1) == int8.argmax(1)
    differences = (exact - int8).abs().amax(1)
    print(f"first word of {same.sum()} of {len(same)} the same, differences {differences.mean():.4f} on average")
    assert torch.count_nonzero(same) >= 0.9 * len(same)
    assert 0 < differences.mean() < 0.03
