"""What a bag of words says of each word of a text, for a network to learn beside the text's label.

A label is one number for a text. A bag that has read thousands of texts has one for every word, pair and triple
of it, also for those that few texts have. The hidden states that go into the network's last layer are to tell
these, by a head that is not kept; what they tell, [CLS] can gather in that layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.heads import BertForSequenceClassification
from model.packing import PackedBatch
from model.tokenizer import Tokenizer
from training.classification import LabelledTexts, cuts, unsaid
from training.config import FinetuneConfig
from training.naive_bayes import Evidence, words_of
from training.sources import Document

MEASURED_TEXTS = 5000
"""So many of a source decide what its unit is"""
LARGEST = 4.0
"""Standard deviations; what is beyond counts as this"""
_TINY = 1e-3


def save(file: Path, key: str, said: Sequence[Evidence | None]) -> None:
    """Write what is said of each text's words, at once or not at all."""
    known = [words for words in said if words is not None]
    part = file.with_name(f"part-{file.name}")
    np.savez(
        part,
        key=key,
        words=[-1 if words is None else len(words) for words in said],
        columns=[0 if words is None else words.shape[1] for words in said],
        values=np.concatenate([words.ravel() for words in known]) if known else np.empty(0, np.float16),
    )
    part.replace(file)


def load(file: Path, key: str) -> list[Evidence | None] | None:
    """What `save` wrote under the same key; None if there is nothing."""
    if not file.is_file():
        return None
    with np.load(file) as stored:
        if str(stored["key"]) != key:
            return None
        words, columns, values = stored["words"], stored["columns"], stored["values"]
    ends = np.cumsum(np.maximum(words, 0) * columns)
    pieces = np.split(values, ends[:-1])
    return [
        None if count < 0 else piece.reshape(count, width)
        for piece, count, width in zip(pieces, words.tolist(), columns.tolist(), strict=True)
    ]


def with_evidence(
    texts: LabelledTexts,
    documents: Sequence[Document],
    spelled: Sequence[Document],
    said: Sequence[Evidence | None],
    likes: Sequence[str | None],
    config: FinetuneConfig,
    tokenizer: Tokenizer,
) -> LabelledTexts:
    """The texts with what is said of their tokens, in standard deviations.

    A word's last token has what is said of the word, its others 0. Each source that texts are like has columns
    of its own; NaN stands in those of others, and for special tokens.

    Args:
        texts: what `encode` made of `spelled`.
        documents: what the words were found in.
        spelled: the same as it is trained on, each character in its place.
        said: of the documents' words.
        likes: the source that each is like.
    """
    columns: dict[str | None, slice] = {}
    width = 0
    for like, words in zip(likes, said, strict=True):
        if words is not None and like not in columns:
            columns[like] = slice(width, width := width + words.shape[1])
    evidence = [unsaid(len(ids), width) for ids in texts.input_ids]
    known = [i for i, words in enumerate(said) if words is not None]
    for at in range(0, len(known), 1000):
        some = known[at : at + 1000]
        fields = zip(*(spelled[i].fields for i in some), strict=True)
        ends = zip(*(tokenizer.ends_batch(column) for column in fields), strict=True)
        for i, token_ends in zip(some, ends, strict=True):
            words = said[i]
            assert words is not None
            evidence[i] = unsaid(len(texts.input_ids[i]), width).copy()
            row = 1
            halves = _onto_tokens(words, documents[i].fields, token_ends)
            for half, (head, tail) in zip(halves, cuts(list(map(len, halves)), config), strict=True):
                kept = np.concatenate([half[:head], half[tail:]])
                evidence[i][row : row + len(kept), columns[likes[i]]] = kept
                row += len(kept) + 1
    for like, place in columns.items():
        of_it = [evidence[i][:, place] for i in known if likes[i] == like]
        unit = np.nanstd(np.concatenate(of_it[:MEASURED_TEXTS]).astype(np.float32), axis=0)
        for rows in of_it:
            rows[:] = np.clip(rows / np.maximum(unit, _TINY), -LARGEST, LARGEST)
    return replace(texts, evidence=evidence)


def _onto_tokens(words: Evidence, fields: Sequence[str], token_ends: Sequence[Sequence[int]]) -> list[Evidence]:
    """The words' rows at the tokens that end where they do: (tokens, columns) of each field."""
    halves, begun = [], 0
    for field, ends in zip(fields, token_ends, strict=True):
        word_ends = [end for _, end in words_of(field)]
        token_at = {end: token for token, end in enumerate(ends)}
        half = np.zeros((len(ends), words.shape[1]), np.float16)
        for word, end in enumerate(word_ends, begun):
            if end in token_at:
                half[token_at[end]] = words[word]
        halves.append(half)
        begun += len(word_ends)
    return halves


class WithWordHead(nn.Module):
    """A classifier that says besides what each token is evidence of, while it is trained."""

    def __init__(self, classifier: BertForSequenceClassification, columns: int) -> None:
        super().__init__()
        self.classifier = classifier
        self.head = nn.Linear(classifier.config.hidden_size, columns)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        encoder = classifier.encoder
        self._hidden = torch.empty(0)
        [encoder.embeddings, *encoder.layers][-2].register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: object, hidden: Tensor) -> None:
        """What goes into the last layer: (total_tokens or more, hidden)"""
        self._hidden = hidden

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Logits (batch, num_labels), and what is said of each token: (total_tokens, columns)"""
        logits = self.classifier(batch)
        hidden, self._hidden = self._hidden[: batch.total_tokens], torch.empty(0)
        return logits, self.head(hidden)


def squared_error(said: Tensor, evidence: Tensor) -> Tensor:
    """Summed over what is known: a scalar. Both are (total_tokens, columns)."""
    known = ~evidence.isnan()
    return F.mse_loss(said.float()[known], evidence[known], reduction="sum")
