"""`bench`: a training step of this repository beside the same step of `transformers`, in one run.

Both get the same examples, weights of the same shape, precision, scaled dot-product attention, AdamW and
clipping; `transformers` gets them padded to the longest, as its collators do. Every step has a batch of its
own, as in training: a CPU's kernels belong to a shape, and a batch that returns would hide what new ones cost.
On a GPU, layers here are compiled where that pays, as in training; those of `transformers` run as they come.
They take turns, so that a busy machine slows both. Tokens are real ones: padding does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from model.config import BertConfig
from model.heads import BertForPreTraining
from training.errors import RunError
from training.examples.batches import collate_pretraining
from training.examples.pairs import IGNORE_INDEX, Example, ExampleMaker, Ints, Vocabulary
from training.loop.flops import pretraining_flops
from training.loop.optimizer import make_optimizer
from training.pretrain.task import pretraining_losses
from training.recipe import ExamplesConfig, PretrainConfig
from training.runtime.compile import compile_if_it_pays
from training.runtime.device import autocast, choose_device, choose_precision, matmul_peak, synchronise

Step = Callable[[int], None]
"""Given the number of the batch."""


@dataclass(slots=True)
class RandomText:
    """Documents of random ids, in the shape of `examples.Text`."""

    ids: NDArray[np.int64]
    sentence_starts: Ints
    document_starts: Ints

    @classmethod
    def make(cls, vocab_size: int, shortest: int, longest: int) -> RandomText:
        """500 documents of 20 sentences, whose lengths lie between these."""
        rng = np.random.default_rng(0)
        starts = np.concatenate([[0], np.cumsum(rng.integers(shortest, longest + 1, 10_000))])
        return cls(rng.integers(5, vocab_size, starts[-1]), starts, np.arange(0, 10_001, 20))

    def tokens(self, first: int, last: int) -> NDArray[np.int64]:
        return self.ids[first:last]


def bench(preset: str, length: int, batch: int, steps: int, device_name: str) -> str:
    """A line for examples of mixed lengths, as training makes them, and one where all are full.

    Raises:
        RunError: there is nothing to time, or no room for examples of this length.
    """
    device = choose_device(device_name)
    config = BertConfig.preset(preset, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    if batch < 1 or steps < 1:
        raise RunError(f"{batch} examples and {steps} steps: bench needs at least one of each")
    positions = config.max_position_embeddings
    if not 8 <= length <= positions:
        raise RunError(f"examples of {length} tokens: {preset} takes 8 to {positions}")
    precision = choose_precision(device)
    peak = matmul_peak(device, precision)
    lines = [
        f"{preset}, {batch} examples of up to {length} tokens, {precision} on {device}; "
        f"matmul peak {peak / 1e9:,.0f} GFLOP/s, {torch.get_num_threads()} threads"
    ]
    for name, shortest, longest in (("mixed lengths", 5, 40), ("all full", length, length)):
        text = RandomText.make(config.vocab_size, shortest, longest)
        batches = _batches(config, text, length, batch, _WARM_UP + steps, full=shortest == length)
        contestants = [_ours(config, batches, device), _theirs(config, batches, device)]
        ours, theirs = _alternate(contestants, steps, device)
        packed = [collate_pretraining(examples) for examples in batches[_WARM_UP:]]
        tokens = sum(batch.tokens for batch in packed)
        flops = sum(pretraining_flops(config, batch.packed, len(batch.masked_ids)) for batch in packed)
        lines.append(
            f"{name}: {tokens / ours:,.0f} tokens/s here (MFU {flops / ours / peak:.0%}), "
            f"{tokens / theirs:,.0f} with transformers: {theirs / ours:.2f} times as fast"
        )
    return "\n".join(lines)


def _batches(
    config: BertConfig, text: RandomText, length: int, size: int, count: int, *, full: bool
) -> list[list[Example]]:
    ordinary = np.arange(5, config.vocab_size)
    vocabulary = Vocabulary(
        config.vocab_size, 2, 3, 4, 1, ordinary, np.zeros(config.vocab_size, dtype=np.bool_)
    )
    shares = {"short_fraction": 0.0, "sentence_pair_fraction": 0.0} if full else {}
    maker = ExampleMaker(text, vocabulary, ExamplesConfig(sequence_length=length, **shares), seed=1)
    available = len(maker.starts(0))
    return [[maker(*divmod(i * size + j, available)) for j in range(size)] for i in range(count)]


_WARM_UP = 10


def _alternate(contestants: Sequence[Step], steps: int, device: torch.device) -> list[float]:
    """Seconds that so many steps of each took."""
    seconds = [0.0 for _ in contestants]
    for turn in range(_WARM_UP + steps):
        for i, step in enumerate(contestants):
            synchronise(device)
            began = time.perf_counter()
            step(turn)
            synchronise(device)
            if turn >= _WARM_UP:
                seconds[i] += time.perf_counter() - began
    return seconds


def _step(model: nn.Module, device: torch.device, loss_of: Callable[[int], Tensor]) -> Step:
    """Forward, backward, clipping, update."""
    precision = choose_precision(device)
    optimizer = make_optimizer(model, PretrainConfig(tokens=1))

    def step(number: int) -> None:
        with autocast(model, precision):
            loss = loss_of(number)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _ours(config: BertConfig, batches: Sequence[Sequence[Example]], device: torch.device) -> Step:
    model = BertForPreTraining(config)
    model.initialise(torch.Generator().manual_seed(0))
    model.to(device).train()
    packed = [collate_pretraining(examples).to(device) for examples in batches]
    step = _step(model, device, lambda i: pretraining_losses(model, packed[i], packed[i].counts)[0])
    compile_if_it_pays(model.encoder, "auto", partial(step, 0))  # as training does
    return step


def _theirs(config: BertConfig, batches: Sequence[Sequence[Example]], device: torch.device) -> Step:
    try:
        import transformers
    except ImportError as error:
        raise RunError("bench compares with transformers: pip install transformers") from error
    values: dict[str, Any] = config.to_dict() | {"attn_implementation": "sdpa"}
    model: Any = transformers.BertForPreTraining(transformers.BertConfig(**values))
    model.to(device).train()
    tensors = [_moved(padded(examples), device) for examples in batches]
    return _step(model, device, lambda i: model(**tensors[i]).loss)


def _moved(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def padded(examples: Sequence[Example]) -> dict[str, Tensor]:
    """The examples as `transformers` takes them: (batch, longest) each."""
    labels = [np.full(len(example.input_ids), IGNORE_INDEX) for example in examples]
    for example, row in zip(examples, labels, strict=True):
        row[example.masked_positions] = example.masked_ids
    return {
        "input_ids": _pad([example.input_ids for example in examples], 0),
        "token_type_ids": _pad([example.token_type_ids for example in examples], 0),
        "attention_mask": _pad([np.ones_like(example.input_ids) for example in examples], 0),
        "labels": _pad(labels, IGNORE_INDEX),
        "next_sentence_label": torch.tensor([example.next_label for example in examples]),
    }


def _pad(rows: Sequence[Ints], value: int) -> Tensor:
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value)
