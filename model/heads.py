"""The encoder's heads: masked words, next sentence, class of a sequence.

Heads take rows of hidden states, not sequences: the caller decides which positions need the projection onto the
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.bert import Activation, BertEncoder
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


class _Network(nn.Module):
    """An encoder with its configuration. Subclasses add heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = BertEncoder(config)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights: from N(0, initializer_range); biases become 0 and norms 1 (as in the published code).

        Args:
            generator: the source of random numbers, on the device of the weights; by default torch's.
        """
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=self.config.initializer_range, generator=generator)
            if isinstance(part, nn.Linear | nn.LayerNorm):
                nn.init.zeros_(part.bias)
            if isinstance(part, nn.LayerNorm):
                nn.init.ones_(part.weight)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute final hidden states, which the heads take.

        Args:
            batch: packed sequences, on the device of the weights.

        Returns:
            (num_outputs, hidden_size), at the batch's output positions. Without any, at all: (total_tokens,
            hidden_size).

        Raises:
            BatchError: a token id, position or token type is out of range; see `PackedBatch.check`.
        """
        batch.check(self.config)
        return self.encoder(batch)


class BertForPreTraining(_Network):
    """Encoder with a masked-LM head and, by default, a next-sentence head (Devlin et al. 2018, section 3.1).

    `masked_lm` and `next_sentence` are the heads. They are called with the rows that `forward` returns:

    - `masked_lm(hidden)`: (rows, hidden_size) -> logits of each word (rows, vocab_size)
    - `next_sentence(hidden)`: hidden states of [CLS] (sequences, hidden_size) -> logits (sequences, 2): 0 if the second
      text follows the first, 1 if it does not. None without this head.
    """

    def __init__(self, config: BertConfig, *, next_sentence: bool = True) -> None:
        """Make a network with random weights.

        Args:
            config: its shape.
            next_sentence: whether it has a next-sentence head.
        """
        super().__init__(config)
        self.masked_lm = MaskedLMHead(config, self.encoder.embeddings.word_embeddings)
        self.next_sentence = NextSentenceHead(config) if next_sentence else None


class BertForSequenceClassification(_Network):
    """Encoder, pooler and a linear classifier (Devlin et al. 2018, section 4.1)."""

    def __init__(self, config: BertConfig) -> None:
        """Make a network with random weights and `config.num_labels` classes."""
        super().__init__(config)
        dropout = config.classifier_dropout
        self.pooler = Pooler(config)
        self.dropout = Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute the logits of each sequence, from its first token, [CLS].

        Args:
            batch: packed sequences, on the device of the weights. Output positions, if given, are each sequence's
                [CLS], so that the last layer computes no others.

        Returns:
            (sequences, num_labels); with output positions, (num_outputs, num_labels). A batch with room for more
            sequences than it has gets rows for them too, which mean nothing.

        Raises:
            BatchError: a token id, position or token type is out of range; see `PackedBatch.check`.
        """
        hidden = super().forward(batch)
        if batch.outputs is None:
            starts = batch.cu_seqlens[:-1].clamp(max=batch.total_tokens - 1)  # missing sequences start after the last
            hidden = hidden.index_select(0, starts)  # (sequences, hidden), of [CLS]
        return self.classifier(self.dropout(self.pooler(hidden)))

    def scores(self, logits: Tensor) -> Tensor:
        """Turn logits into scores, as the pipeline of `transformers` does.

        Args:
            logits: (sequences, num_labels)

        Returns:
            Scores by `BertConfig.score_function`, of the same shape, in the order of `BertConfig.labels`.
        """
        function = self.config.score_function
        return logits if function == "none" else logits.sigmoid() if function == "sigmoid" else logits.softmax(-1)
