"""The encoder's heads: masked words, next sentence, class of a sequence.

Heads take rows of hidden states, not sequences: the caller decides which positions need the projection onto the
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.bert import Activation, BertEncoder, initialise
from model.config import BertConfig
from model.dropout import Dropout
from model.packing import PackedBatch


class MaskedLMHead(nn.Module):
    """Transform and decoder (Devlin et al. 2018, section 3.1, task 1). The decoder's weight is the word
    embedding if `tie_word_embeddings` is true."""

    def __init__(self, config: BertConfig, word_embeddings: nn.Embedding) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = Activation(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.decoder.weight = word_embeddings.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) -> logits (rows, vocab_size)"""
        return self.decoder(self.norm(self.activation(self.transform(hidden))))


class Pooler(nn.Module):
    """A linear layer and tanh over the hidden state of [CLS]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of [CLS] (sequences, hidden) -> (sequences, hidden)"""
        return torch.tanh(self.dense(hidden))


class NextSentenceHead(nn.Module):
    """Logit 0: the second segment follows the first; logit 1: it does not (section 3.1, task 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.pooler = Pooler(config)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of [CLS] (sequences, hidden) -> logits (sequences, 2)"""
        return self.classifier(self.pooler(hidden))


class BertForPreTraining(nn.Module):
    """Encoder with a masked-LM head and, by default, a next-sentence head."""

    def __init__(self, config: BertConfig, *, next_sentence: bool = True) -> None:
        super().__init__()
        self.config = config
        self.encoder = BertEncoder(config)
        self.masked_lm = MaskedLMHead(config, self.encoder.embeddings.word_embeddings)
        self.next_sentence = NextSentenceHead(config) if next_sentence else None

    def forward(self, batch: PackedBatch) -> Tensor:
        """Hidden states at the output positions, (num_outputs, hidden), whose rows `masked_lm` and
        `next_sentence` take."""
        return self.encoder(batch)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights; see `model.bert.initialise`."""
        initialise(self, self.config, generator)


class BertForSequenceClassification(nn.Module):
    """Encoder, pooler and a linear classifier (section 4.1)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        dropout = config.classifier_dropout
        self.encoder = BertEncoder(config)
        self.pooler = Pooler(config)
        self.dropout = Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Batch -> logits (sequences, num_labels)

        Output positions, if given, are each sequence's [CLS], so that the last layer computes no others.
        """
        hidden = self.encoder(batch)
        if batch.outputs is None:
            hidden = hidden.index_select(0, batch.cu_seqlens[:-1])  # (sequences, hidden), of [CLS]
        return self.classifier(self.dropout(self.pooler(hidden)))

    def scores(self, logits: Tensor) -> Tensor:
        """Logits (sequences, num_labels) -> scores of the same shape, as the pipeline of `transformers` computes them.
        See `BertConfig.score_function`."""
        function = self.config.score_function
        return logits if function == "none" else logits.sigmoid() if function == "sigmoid" else logits.softmax(-1)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights; see `model.bert.initialise`."""
        initialise(self, self.config, generator)
