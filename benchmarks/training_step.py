"""`python -m benchmarks.training_step`: a training step of this repository beside that of `transformers`, in one run.

Both get the same examples, weights of the same shape, precision, scaled dot-product attention, AdamW and clipping. This
repository packs them into batches of constant shape, as in training. `transformers` gets them padded to the longest, as
its collators do. Every step has its own batch, because a CPU's kernels belong to a shape. On a GPU both are compiled.
They take turns, so that a busy machine slows both. Padding does not count as tokens.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.flops import matmul_peak, pretraining_flops
from model.config import BertConfig
from model.errors import BertError
from model.heads import BertForPreTraining
from model.packing import round_up_to_bucket
from training.errors import RunError
from training.examples.batches import BatchShape, PretrainingBatch, batch_bounds, collate_pretraining
from training.examples.masking import Examples, Vocabulary, mask
from training.examples.pairs import IGNORE_INDEX, LABELS, Ints, PairKind, Pairs, sample_pairs
from training.loop.optimizer import make_optimizer, update_weights
from training.pretrain.task import PretrainingLoss
from training.recipe import BUCKET_TOKENS, NUM_SPECIAL_TOKENS, ExamplesConfig
from training.runtime.device import (
    autocast,
    choose_device,
    choose_precision,
    configure_process,
    maybe_compile,
    synchronize,
)

WARM_UP = 4
"""Steps of each contestant that are not timed."""

MASK_FRACTION = 0.15

Step = Callable[[int], None]
"""Runs one step, given the number of the batch."""


@dataclass(slots=True)
class RandomText:
    """Documents of random ids. Implements `training.examples.pairs.Text`."""

    ids: NDArray[np.int64]
    sentence_starts: Ints
    document_starts: Ints

    @classmethod
    def make(cls, vocab_size: int, shortest: int = 5, longest: int = 40) -> RandomText:
        """500 documents of 20 sentences, with lengths between `shortest` and `longest`."""
        rng = np.random.default_rng(0)
        starts = np.concatenate([[0], np.cumsum(rng.integers(shortest, longest + 1, 10_000))])
        return cls(rng.integers(5, vocab_size, starts[-1]), starts, np.arange(0, 10_001, 20))

    def tokens(self, first: int, last: int) -> NDArray[np.int64]:
        return self.ids[first:last]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("preset", nargs="?", default="mini", help="tiny, mini, small, medium, base or large")
    parser.add_argument("--length", type=int, default=128, help="tokens of a full example")
    parser.add_argument("--batch", type=int, default=32, help="full examples per step")
    parser.add_argument("--steps", type=int, default=20, help="steps to time")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    options = parser.parse_args(arguments)
    configure_process()
    try:
        print(bench(options.preset, options.length, options.batch, options.steps, options.device))
    except BertError as error:
        parser.error(str(error))


def bench(preset: str, length: int, batch: int, steps: int, device_name: str) -> str:
    """A line for examples of mixed lengths, as in training, and one where all are full.

    Args:
        length: tokens of a full example.
        batch: full examples that fit into a step.

    Raises:
        RunError: there is no step to time, or no room for examples of this length.
    """
    device = choose_device(device_name)
    config = BertConfig.preset(preset, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    if batch < 1 or steps < 1:
        raise RunError(f"{batch} examples and {steps} steps: give at least one of each")
    positions = config.max_position_embeddings
    if not 8 <= length <= positions:
        raise RunError(f"examples of {length} tokens: {preset} takes 8 to {positions}")
    precision = choose_precision(device)
    peak = matmul_peak(device, precision)
    lines = [
        f"{preset}, {batch * length} tokens per step in examples of up to {length}, {precision} on {device}; "
        f"matmul peak {peak / 1e9:,.0f} GFLOP/s, {torch.get_num_threads()} threads"
    ]
    text = RandomText.make(config.vocab_size)
    for name, pairs in (("mixed lengths", _mixed(text, length)), ("all full", _full(text, length))):
        batches = list(itertools.islice(_batches(text, pairs, config, batch * length), WARM_UP + steps))
        packed = [_pack(chosen, batch * length, length) for chosen in batches]
        contestants = [_ours(config, packed, device), _theirs(config, batches, device)]
        ours, theirs = _alternate(contestants, steps, device)
        tokens = sum(len(examples.input_ids) for examples in batches[WARM_UP:])
        flops = sum(pretraining_flops(config, each.packed, len(each.masked_ids)) for each in packed[WARM_UP:])
        lines.append(
            f"{name}: {tokens / ours:,.0f} tokens/s here ({flops / ours / peak:.0%} of the peak), "
            f"{tokens / theirs:,.0f} with transformers: {theirs / ours:.2f} times as fast"
        )
    return "\n".join(lines)


def _mixed(text: RandomText, length: int) -> Iterator[Pairs]:
    """Endless passes of pairs like those of training."""
    settings, rng = ExamplesConfig(short_length=length, long_fraction=0), np.random.default_rng(1)
    while True:
        yield sample_pairs(text, settings, rng)


def _full(text: RandomText, length: int) -> Iterator[Pairs]:
    """Endless passes of pairs of exactly `length` tokens."""
    rng, room = np.random.default_rng(1), length - NUM_SPECIAL_TOKENS
    first = room // 2
    while True:
        starts = rng.integers(len(text.ids) - room, size=(1000, 1)) + np.array([0, first])
        yield Pairs(starts, np.tile([first, room - first], (1000, 1)), np.full(1000, PairKind.NEXT))


def _batches(text: RandomText, passes: Iterator[Pairs], config: BertConfig, tokens: int) -> Iterator[Examples]:
    """Examples that fit into `tokens` tokens, for each batch."""
    vocabulary, rng = Vocabulary(2, 3, 4, 1, np.arange(5, config.vocab_size)), np.random.default_rng(1)
    for pairs in passes:
        bounds = batch_bounds(pairs.lengths, BatchShape(tokens, sequences=tokens))
        for start, stop in itertools.pairwise(bounds[:-1]):  # the last batch of a pass is filled in part
            yield mask(text, pairs[start:stop], MASK_FRACTION, vocabulary, rng)


def _pack(examples: Examples, tokens: int, length: int) -> PretrainingBatch:
    tokens = -(-tokens // BUCKET_TOKENS) * BUCKET_TOKENS
    masked = max(round(MASK_FRACTION * tokens), len(examples.masked_ids))
    most = 1 + int(examples.masked.max())
    shape = BatchShape(tokens, 2 * tokens // length + 8, round_up_to_bucket(masked), length, most)
    return collate_pretraining(examples, shape)


def _alternate(contestants: Sequence[Step], steps: int, device: torch.device) -> list[float]:
    """Seconds for `steps` steps of each contestant."""
    seconds = [0.0 for _ in contestants]
    for turn in range(WARM_UP + steps):
        for i, step in enumerate(contestants):
            synchronize(device)
            began = time.perf_counter()
            step(turn)
            synchronize(device)
            if turn >= WARM_UP:
                seconds[i] += time.perf_counter() - began
    return seconds


def _step(model: nn.Module, device: torch.device, loss_of: Callable[[int], Tensor]) -> Step:
    """A step: forward, backward, clipping, update."""
    precision = choose_precision(device)
    optimizer = make_optimizer(model, learning_rate=1e-3)

    def step(number: int) -> None:
        with autocast(model, precision):
            loss = loss_of(number)
        loss.backward()
        update_weights(model, optimizer)

    return step


def _ours(config: BertConfig, batches: Sequence[PretrainingBatch], device: torch.device) -> Step:
    model = BertForPreTraining(config)
    model.initialise(torch.Generator().manual_seed(0))
    loss = PretrainingLoss(model).to(device).train()
    maybe_compile(loss)
    moved = [batch.to(device) for batch in batches]
    return _step(model, device, lambda i: loss(moved[i])[0])


def _theirs(config: BertConfig, batches: Sequence[Examples], device: torch.device) -> Step:
    try:
        import transformers
    except ImportError as error:
        raise RunError("the comparison needs transformers: pip install transformers") from error
    values: dict[str, Any] = config.to_dict() | {"attn_implementation": "sdpa"}
    model: Any = transformers.BertForPreTraining(transformers.BertConfig(**values))
    model.to(device).train()
    if device.type == "cuda":
        model.compile(dynamic=True)  # padded batches have many shapes
    tensors = [_moved(padded(examples), device) for examples in batches]
    return _step(model, device, lambda i: model(**tensors[i]).loss)


def _moved(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def padded(examples: Examples) -> dict[str, Tensor]:
    """The examples as `transformers` reads them: (batch, longest) each."""
    labels = np.full(len(examples.input_ids), IGNORE_INDEX)
    labels[examples.masked_positions] = examples.masked_ids
    lengths = examples.lengths
    return {
        "input_ids": _pad(examples.input_ids, lengths, 0),
        "token_type_ids": _pad(examples.token_type_ids, lengths, 0),
        "attention_mask": _pad(np.ones_like(labels), lengths, 0),
        "labels": _pad(labels, lengths, IGNORE_INDEX),
        "next_sentence_label": torch.from_numpy(LABELS[examples.kinds]),
    }


def _pad(values: Ints, lengths: Ints, value: int) -> Tensor:
    rows = torch.from_numpy(values).split(lengths.tolist())
    return pad_sequence(rows, batch_first=True, padding_value=value)


if __name__ == "__main__":
    main()
