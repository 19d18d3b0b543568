"""The two checkpoints for all measurements: the shipped ones, others, or random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks import texts
from model import BertConfig, BertForPreTraining, BertForSequenceClassification, Tokenizer, save_checkpoint

_SHIPPED = Path(__file__).parents[1] / "model" / "weights"
_RANDOM = Path(__file__).parent / ".venv" / "random-weights"  # ignored by git
VOCABULARY = 8192


def directories(root: Path | None) -> tuple[Path, Path]:
    """`pretrained` and `sentiment` under `root`, or the shipped ones. If these are missing, they are smaller random
    ones (4 layers of 256), because speed does not depend on the weights."""
    if root is None:
        root = _SHIPPED if (_SHIPPED / "sentiment").is_dir() else _make_random()
    return root / "pretrained", root / "sentiment"


def _make_random() -> Path:
    if not (_RANDOM / "sentiment" / "model.safetensors").exists():
        make_random(_RANDOM, num_hidden_layers=4, hidden_size=256)
    return _RANDOM


def make_random(root: Path, num_hidden_layers: int, hidden_size: int) -> None:
    """Write `pretrained` and `sentiment` of this shape, with random weights, into `root`."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = Tokenizer.train(texts.generated(20_000), VOCABULARY)
    config = BertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        num_attention_heads=max(1, hidden_size // 64),
        intermediate_size=4 * hidden_size,
    )
    for name, kind in (("pretrained", BertForPreTraining), ("sentiment", BertForSequenceClassification)):
        network = kind(config)
        network.initialise(generator)
        save_checkpoint(root / name, network, tokenizer)
