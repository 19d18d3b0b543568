"""What int8 costs in accuracy: `python -m benchmarks.int8 --data <folder>`.

The same networks in float32 and in int8. The shipped ones on labelled test data: accuracy, calibration, and the first
word of fill-mask. And a random network of 12 layers of 768 with outlier channels: the error of its logits.
"""

from __future__ import annotations

import argparse
import copy
import json
import lzma
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import checkpoints
from model import BertConfig, BertForPreTraining, BertForSequenceClassification, Encoding, PackedBatch, load_checkpoint
from model.inference.quantization import quantize_encoder
from training.evaluate.classification import expected_calibration_error, reliability

Network = BertForSequenceClassification | BertForPreTraining

OUTLIER_CHANNELS, OUTLIER_FACTOR = 6, 20.0
"""A few channels of a trained BERT's layer norms have weights many times the others' (Kovaleva et al. 2021, "BERT
Busters", https://arxiv.org/abs/2105.06990)."""
_BATCH_TOKENS = 2048
_MASKED_TOKENS = 64
"""Tokens of a text with a mask."""


@dataclass(frozen=True, slots=True)
class Source:
    """Labelled texts in a file of the data folder."""

    name: str
    file: str
    limit: int
    """Texts, evenly spaced in the file"""
    fields: tuple[str, ...] = ("text",)
    pair: bool = False

    def read(self, data: Path) -> tuple[list[list[str]], Tensor]:
        """One text each, or two of a pair, and the labels (texts,)."""
        with lzma.open(data / self.file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        rows = [row for row in rows if all(row[name] for name in self.fields)]
        rows = rows[:: max(1, len(rows) // self.limit)][: self.limit]
        columns = [[row[name] for name in self.fields] for row in rows]
        texts = columns if self.pair else [["\n".join(column)] for column in columns]
        return texts, torch.tensor([int(row["label"]) for row in rows])


SOURCES = (
    Source("IMDB", "imdb/test.jsonl.xz", 2000),
    Source("SST-2", "sst2/dev.jsonl.xz", 872),
    Source("Amazon", "amazon/test.jsonl.xz", 5493),
    Source("reviews, one text", "reviews/test.jsonl.xz", 2000, ("title", "text")),
    Source("reviews, pairs", "reviews/test.jsonl.xz", 2000, ("title", "text"), pair=True),
)


def quantized(network: Network) -> Network:
    """A copy in int8."""
    made = copy.deepcopy(network)
    quantize_encoder(made.encoder)
    return made


@torch.inference_mode()
def logits(network: Network, encodings: Sequence[Encoding], positions: Sequence[int]) -> Tensor:
    """Of the classes, or of the vocabulary at a position of each text: (texts, labels or vocab_size)"""
    rows: dict[int, Tensor] = {}
    for chunk in _batches(encodings):
        batch = PackedBatch.pack(
            [encodings[i].input_ids for i in chunk],
            [encodings[i].token_type_ids for i in chunk],
            [[positions[i]] for i in chunk],
        )
        hidden = network(batch)
        out = network.masked_lm(hidden) if isinstance(network, BertForPreTraining) else hidden
        rows |= dict(zip(chunk, out, strict=True))
    return torch.stack([rows[i] for i in range(len(encodings))])


def _batches(encodings: Sequence[Encoding]) -> Iterator[list[int]]:
    """Indices of texts of similar length, up to `_BATCH_TOKENS` together."""
    chunk: list[int] = []
    for i in sorted(range(len(encodings)), key=lambda i: len(encodings[i])):
        if chunk and (len(chunk) + 1) * len(encodings[i]) > _BATCH_TOKENS:
            yield chunk
            chunk = []
        chunk.append(i)
    yield chunk


def compare_classifier(directory: Path, data: Path) -> None:
    """Print accuracy and calibration error on each source."""
    checkpoint = load_checkpoint(directory)
    exact = checkpoint.model.eval()
    limit = checkpoint.config.max_position_embeddings
    int8 = quantized(exact)
    print("| | texts | accuracy, float32 | int8 | calibration error, float32 | int8 |\n|---|---|---|---|---|---|")
    for source in SOURCES:
        texts, labels = source.read(data)
        encodings = [checkpoint.tokenizer.encode(*text, max_length=limit, truncate=True) for text in texts]
        found = [logits(network, encodings, [0] * len(texts)) for network in (exact, int8)]
        right = torch.stack([out.argmax(1) == labels for out in found]).double()
        errors = [
            expected_calibration_error(reliability(out.softmax(1).amax(1), row > 0))
            for out, row in zip(found, right, strict=True)
        ]
        difference = right[1] - right[0]
        error = difference.std().item() / len(texts) ** 0.5
        print(
            f"| {source.name} | {len(texts)} | {right[0].mean():.4f} | {difference.mean():+.4f} ± {error:.4f} "
            f"| {errors[0]:.4f} | {errors[1] - errors[0]:+.4f} |",
            flush=True,
        )


def compare_masks(directory: Path, data: Path) -> None:
    """Print how often the first word for a mask is the same."""
    checkpoint, rng = load_checkpoint(directory), random.Random(0)
    texts, _ = SOURCES[0].read(data)
    encodings = [checkpoint.tokenizer.encode(*text, max_length=_MASKED_TOKENS, truncate=True) for text in texts]
    positions = [rng.randrange(1, len(encoding) - 1) for encoding in encodings]
    for encoding, position in zip(encodings, positions, strict=True):
        encoding.input_ids[position] = checkpoint.tokenizer.mask_id
    exact = checkpoint.model.eval()
    first, other = (logits(network, encodings, positions) for network in (exact, quantized(exact)))
    same = (first.argmax(1) == other.argmax(1)).double().mean()
    apart = (first.softmax(1) - other.softmax(1)).abs().amax(1)
    print(f"fill-mask, {len(texts)} masks: the first word is the same for {same:.1%}; ", end="")
    print(f"probabilities differ by {apart.mean():.4f} on average and {apart.max():.4f} at most")


def compare_outliers() -> None:
    """Print the relative error of the logits of a random network with outlier channels."""
    generator = torch.Generator().manual_seed(0)
    network = BertForPreTraining(BertConfig.preset("base", vocab_size=checkpoints.VOCABULARY)).eval()
    network.initialise(generator)
    chosen = torch.randperm(network.config.hidden_size, generator=generator)[:OUTLIER_CHANNELS]
    with torch.no_grad():
        for layer in network.encoder.layers:
            layer.attention_norm.weight[chosen] *= OUTLIER_FACTOR
            layer.output_norm.weight[chosen] *= OUTLIER_FACTOR
    draws = [torch.randint(5, checkpoints.VOCABULARY, (64,), generator=generator).tolist() for _ in range(32)]
    encodings = [Encoding(ids, [0] * 64, [], truncated=False) for ids in draws]
    exact, int8 = (logits(model, encodings, [0] * 32) for model in (network, quantized(network)))
    errors = (int8 - exact).norm(dim=1) / (exact - exact.mean(1, keepdim=True)).norm(dim=1)
    print(
        f"random 12 x 768 with outliers: relative error of the logits {errors.mean():.4f}, at most {errors.max():.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--data", type=Path, required=True, help="folder with imdb/, sst2/, amazon/ and reviews/")
    options = parser.parse_args()
    pretrained, sentiment = checkpoints.directories(options.checkpoints)
    compare_classifier(sentiment, options.data)
    compare_masks(pretrained, options.data)
    compare_outliers()


if __name__ == "__main__":
    main()
