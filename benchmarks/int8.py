"""The loss of accuracy in int8: `python -m benchmarks.int8 --data <folder>`.

Each network runs in float32 and in int8. The shipped ones run on labelled test data, and their accuracy and first words
of fill-mask are compared. For a random network of 12 layers of 768 with outlier channels, the error of its logits is
computed.
"""

from __future__ import annotations

import argparse
import copy
import json
import lzma
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import checkpoints, results
from model import BertConfig, BertForPreTraining, BertForSequenceClassification, Encoding, PackedBatch, load_checkpoint
from model.inference.quantization import quantize_encoder, weight_limit

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
    """Number of texts, evenly spaced in the file"""
    fields: tuple[str, ...] = ("text",)
    pair: bool = False

    def read(self, data: Path) -> tuple[list[list[str]], Tensor]:
        """One text each, or two for a pair, and the labels (texts,)."""
        with lzma.open(data / self.file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        rows = [row for row in rows if all(row[name] for name in self.fields)]
        rows = rows[:: max(1, len(rows) // self.limit)][: self.limit]
        columns = [[row[name] for name in self.fields] for row in rows]
        texts = columns if self.pair else [["\n".join(column)] for column in columns]
        return texts, torch.tensor([int(row["label"]) for row in rows])


SOURCES = (
    Source("IMDB", "imdb/test.jsonl.xz", 1000),
    Source("SST-2", "sst2/dev.jsonl.xz", 872),
    Source("Amazon", "amazon/test.jsonl.xz", 2000),
    Source("reviews of 34 sources, one text", "reviews/test.jsonl.xz", 2000, ("title", "text")),
    Source("reviews, title and body as pair", "reviews/test.jsonl.xz", 2000, ("title", "text"), pair=True),
)
MASKED = Source("IMDB", "imdb/test.jsonl.xz", 2000)


def quantized(network: Network) -> Network:
    """A copy in int8."""
    made = copy.deepcopy(network)
    quantize_encoder(made.encoder)
    return made


@torch.inference_mode()
def logits(network: Network, encodings: Sequence[Encoding], positions: Sequence[int]) -> Tensor:
    """Logits of the classes, or of the vocabulary at a position of each text: (texts, labels or vocab_size)"""
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


def compare_classifier(directory: Path, data: Path) -> dict[str, list[float]]:
    """Accuracy on each source in float32, the difference in int8 and its standard error."""
    checkpoint = load_checkpoint(directory)
    config, exact = checkpoint.config, checkpoint.model.eval()
    int8 = quantized(exact)
    rows = {}
    for source in SOURCES:
        texts, labels = source.read(data)
        options = {"max_length": config.max_position_embeddings, "truncate": True, "truncation": config.truncation}
        encodings = [checkpoint.tokenizer.encode(*text, **options, spans=False) for text in texts]
        found = [logits(network, encodings, [0] * len(texts)) for network in (exact, int8)]
        right = torch.stack([out.argmax(1) == labels for out in found]).double()
        change = right[1] - right[0]
        deviation = change.std().item() / len(texts) ** 0.5
        accuracy = [right[0].mean().item(), change.mean().item(), deviation]
        rows[source.name] = [len(texts), *accuracy]
        print(source.name, *rows[source.name], flush=True)
    return rows


def compare_masks(directory: Path, data: Path) -> str:
    """The share of masks for which the first word is the same, in a sentence."""
    checkpoint, rng = load_checkpoint(directory), random.Random(0)
    texts, _ = MASKED.read(data)
    encodings = [checkpoint.tokenizer.encode(*text, max_length=_MASKED_TOKENS, truncate=True) for text in texts]
    positions = [rng.randrange(1, len(encoding) - 1) for encoding in encodings]
    for encoding, position in zip(encodings, positions, strict=True):
        encoding.ids[position] = checkpoint.tokenizer.mask_id
    exact = checkpoint.model.eval()
    first, other = (logits(network, encodings, positions) for network in (exact, quantized(exact)))
    same = (first.argmax(1) == other.argmax(1)).double().mean()
    apart = (first.softmax(1) - other.softmax(1)).abs().amax(1)
    said = f"The first word for a mask is the same for {same:.1%} of {len(texts):,} random tokens of IMDB; "
    return said + f"probabilities differ by {apart.mean():.4f} on average and {apart.max():.4f} at most."


def compare_outliers() -> str:
    """The relative error of the logits of a random network with outlier channels."""
    generator = torch.Generator().manual_seed(0)
    network = BertForPreTraining(BertConfig.preset("base", vocab_size=checkpoints.VOCABULARY)).eval()
    network.initialise(generator)
    chosen = torch.randperm(network.config.hidden_size, generator=generator)[:OUTLIER_CHANNELS]
    with torch.no_grad():
        for layer in network.encoder.layers:
            layer.attention_norm.weight[chosen] *= OUTLIER_FACTOR
            layer.output_norm.weight[chosen] *= OUTLIER_FACTOR
    draws = [torch.randint(5, checkpoints.VOCABULARY, (64,), generator=generator).tolist() for _ in range(32)]
    encodings = [Encoding(array("i", ids), 64, [], truncated=False) for ids in draws]
    exact, int8 = (logits(model, encodings, [0] * 32) for model in (network, quantized(network)))
    errors = (int8 - exact).norm(dim=1) / (exact - exact.mean(1, keepdim=True)).norm(dim=1)
    said = "Logits of a random network of 12 layers of 768 with outlier channels have a relative error of "
    return said + f"{errors.mean():.3f} on average and {errors.max():.3f} at most."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--data", type=Path, required=True, help="folder with imdb/, sst2/, amazon/ and reviews/")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    pretrained, sentiment = checkpoints.directories(options.checkpoints)
    columns = {"texts": ",.0f", "accuracy, float32": ".4f", "int8": "+.4f", "± standard error": ".4f"}
    rows = compare_classifier(sentiment, options.data)
    bits = "7-bit" if weight_limit(256, 256) < 127 else "8-bit"
    notes = f"With {bits} weights. {compare_masks(pretrained, options.data)} {compare_outliers()}"
    results.publish(results.result(columns, rows, notes), options.json)


if __name__ == "__main__":
    main()
