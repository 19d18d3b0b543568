"""Fixtures of the model's tests; helpers are in `reference.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model import Tokenizer
from tests.model.reference import VOCAB


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads are slower on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    """A tokenizer of 37 tokens: two words, and single letters."""
    return Tokenizer.from_vocab(VOCAB)


@pytest.fixture(scope="session")
def published_vocab() -> Path:
    """The vocabulary of bert-base-uncased; BERT_DATA names the folder that holds it."""
    folder = Path(os.environ.get("BERT_DATA", Path(__file__).parents[3] / "shared" / "data"))
    file = folder / "bert_base_uncased_vocab.txt"
    if not file.is_file():
        pytest.skip(f"{file} not found")
    return file
