"""Shared by all tests: small random checkpoints with a vocabulary that has meaning to a reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model import BertConfig, BertForPreTraining, BertForSequenceClassification, Tokenizer, save_checkpoint
from model.tokenizer import SPECIAL_TOKENS

WORDS = "the a film movie was is good bad great boring and i loved hated it . , ! ? walk ##ing ##s".split()
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCAB = [*SPECIAL_TOKENS, *dict.fromkeys([*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])]


def tiny_config(**changes: object) -> BertConfig:
    """Two layers of 32 over 64 positions."""
    shape = {
        "vocab_size": len(VOCAB),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,  # wide enough for scores that differ
    }
    return BertConfig(**(shape | changes))  # type: ignore[arg-type]


def save_pretrained(directory: Path, *, next_sentence: bool = True) -> Path:
    """A masked-LM checkpoint, with a next-sentence head or without."""
    network = BertForPreTraining(tiny_config(), next_sentence=next_sentence)
    network.initialise(torch.Generator().manual_seed(0))
    save_checkpoint(directory, network, Tokenizer.from_vocab(VOCAB))
    return directory


def save_sentiment(directory: Path, **changes: object) -> Path:
    """A classifier of two labels."""
    network = BertForSequenceClassification(tiny_config(id2label={0: "NEGATIVE", 1: "POSITIVE"}, **changes))
    network.initialise(torch.Generator().manual_seed(1))
    save_checkpoint(directory, network, Tokenizer.from_vocab(VOCAB))
    return directory


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a tiny random pre-trained checkpoint."""
    return save_pretrained(tmp_path_factory.mktemp("checkpoints") / "tiny-pretrained")


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a tiny random classifier."""
    return save_sentiment(tmp_path_factory.mktemp("checkpoints") / "tiny-sentiment")
