"""A network twice as wide that answers as the one it was made from, to go on training with more room.

Every feature, head and inner unit is there twice (Net2WiderNet, Chen et al. 2015,
https://arxiv.org/abs/1511.05641; for BERT, Chen et al. 2021, https://arxiv.org/abs/2110.07143): a layer norm
over twice the same numbers is what it was, and whatever reads both copies takes half of each. Copies that were
alike in everything would learn the same for ever, so readers take some more of the one and as much less of the
other.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.config import BertConfig
from model.heads import BertForPreTraining, BertForSequenceClassification
from training.directory import write_directory
from training.errors import RunError

_UNLIKENESS = 0.4
"""Standard deviation of what is added to one half of a weight and taken from the other, over that of the weight
itself: with the halves, the wide matrix is about as large as one that was trained at its width."""


def grow(source: Path, target: Path, seed: int = 1) -> Path:
    """Write the checkpoint `source` at twice its width: hidden size, heads, inner size; heads keep theirs.

    Raises:
        RunError: `source` has a decoder of its own, whose width nothing here halves.
    """
    checkpoint = load_checkpoint(source)
    model, config = checkpoint.model, checkpoint.model.config
    if not config.tie_word_embeddings:
        raise RunError(f"{source} has another decoder than its word embeddings; only tied ones can grow")
    wide = _like(
        model,
        config.replace(
            hidden_size=2 * config.hidden_size,
            num_attention_heads=2 * config.num_attention_heads,
            intermediate_size=2 * config.intermediate_size,
        ),
    )
    generator, weights = torch.Generator().manual_seed(seed), model.state_dict()
    wide.load_state_dict(
        {
            name: _widened(name, weights[name].float(), len(place), generator)
            for name, place in wide.state_dict().items()
        }
    )
    write_directory(target, wide, checkpoint.tokenizer, torch.float32)
    return target


def _like(
    model: BertForPreTraining | BertForSequenceClassification, config: BertConfig
) -> BertForPreTraining | BertForSequenceClassification:
    if isinstance(model, BertForPreTraining):
        return BertForPreTraining(config, next_sentence=model.next_sentence is not None)
    return BertForSequenceClassification(config)


def _widened(name: str, weight: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """The tensor of the wide network, of `length` rows: rows twice if it has more of them, columns twice."""
    parts = 3 if ".query_key_value." in name else 1  # queries of all heads, then keys, then values
    rows = weight.unflatten(0, (parts, -1))
    rows = rows.repeat(1, length // len(weight), *[1] * (weight.ndim - 1)).flatten(0, 1)
    if name.startswith("masked_lm.norm."):
        return rows / 2  # the decoder is the word embedding, which cannot take half of each copy
    if weight.ndim == 1:
        return rows
    if "embeddings." in name or name == "masked_lm.decoder.weight":
        return torch.cat([rows, rows], 1)
    more = _UNLIKENESS * weight.std() * torch.randn(rows.shape, generator=generator)
    return torch.cat([rows / 2 + more, rows / 2 - more], 1)
