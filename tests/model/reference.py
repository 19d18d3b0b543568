"""Random weights in several shapes, and the logits of `transformers`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from model import BertForPreTraining, BertForSequenceClassification, PackedBatch
from model.tokenizer import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = [*SPECIAL_TOKENS, *LETTERS, "##s", "##ing", "hello", "world", ",", "."]  # 37 tokens

Answers = dict[str, Tensor]

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass(frozen=True)
class Sequences:
    """A few sequences of ids, each with its segments."""

    input_ids: list[list[int]]
    token_type_ids: list[list[int]]

    @classmethod
    def random(cls, vocab_size: int, longest: int, segments: int = 2, count: int = 5, seed: int = 0) -> Sequences:
        rng = random.Random(seed)
        lengths = [longest, *(rng.randint(1, longest) for _ in range(count - 1))]
        ids = [[rng.randrange(vocab_size) for _ in range(n)] for n in lengths]
        return cls(ids, [sorted(rng.randrange(segments) for _ in range(n)) for n in lengths])

    def packed(self) -> PackedBatch:
        return PackedBatch.pack(self.input_ids, self.token_type_ids)


def randomise(model: nn.Module, seed: int = 0, std: float = 0.15) -> None:
    """Draw every parameter, biases and norms included, so that swapped parameters change the result."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std, generator=generator)
        for part in model.modules():
            if isinstance(part, nn.LayerNorm):
                part.weight += 1


@torch.no_grad()
def our_answers(model: BertForPreTraining | BertForSequenceClassification, sequences: Sequences) -> Answers:
    """Logits of all sequences, computed as one packed batch."""
    batch = sequences.packed()
    if isinstance(model, BertForSequenceClassification):
        return {"labels": model(batch.with_outputs([[0]] * len(batch.lengths)))}
    hidden = model(batch)
    answers = {"words": model.masked_lm(hidden)}
    if model.next_sentence is not None:
        answers["next"] = model.next_sentence(hidden[batch.cu_seqlens[:-1]])
    return answers


@torch.no_grad()
def their_answers(model: Any, sequences: Sequences) -> Answers:
    """Logits of all sequences, computed by `transformers` one at a time."""
    found: dict[str, list[Tensor]] = {"words": [], "next": [], "labels": []}
    for ids, types in zip(sequences.input_ids, sequences.token_type_ids, strict=True):
        out = model.eval()(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        if hasattr(out, "prediction_logits"):
            found["words"].append(out.prediction_logits[0])
            found["next"].append(out.seq_relationship_logits)
        else:
            found["labels" if "Classification" in type(model).__name__ else "words"].append(out.logits.flatten(0, -2))
    return {name: torch.cat(rows) for name, rows in found.items() if rows}


def assert_same(ours: Answers, theirs: Answers, tolerance: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, logits in ours.items():
        assert theirs[name].std() > 0.05, "the logits differ too little for the comparison to show anything"
        torch.testing.assert_close(logits, theirs[name], atol=tolerance, rtol=tolerance)


def their_config(**changes: Any) -> transformers.BertConfig:
    shape = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 24,
    }
    return transformers.BertConfig(**(shape | changes))


def their_model(architecture: str, **changes: Any) -> Any:
    model = getattr(transformers, architecture)(their_config(**changes))
    randomise(model)
    return model


def save_theirs(directory: Path, model: Any, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    transformers.BertTokenizer(vocab={token: i for i, token in enumerate(VOCAB)}).save_pretrained(directory)
    return directory
