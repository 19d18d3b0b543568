"""BERT's encoder (Devlin et al. 2018, https://arxiv.org/abs/1810.04805), from top to bottom.

A transformer encoder with learned positions and token types, normalised after each residual, as published.
Notable:
- no padding: sequences of any lengths are packed end to end, and only attention knows their bounds (`PackedBatch`)
- the last layer computes queries, attention output and feed-forward at output positions only (`OutputPositions`)
- one fused projection for queries, keys and values
- attention is chosen per batch by device, precision and purpose (`model.attention.choose`)
- on CUDA the forward pass never waits for the device, so it can be traced as a whole and recorded as a CUDA graph

Shapes: T packed tokens, R output positions, H hidden size, N heads, D head_dim; H = N * D.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention.base import Attention
from model.attention.choose import attention_for
from model.config import EXACT_GELU, BertConfig
from model.dropout import Dropout
from model.packing import PackedBatch

_ACTIVATIONS = {"relu": F.relu, "silu": F.silu, "swish": F.silu, "tanh": torch.tanh}


class Activation(nn.Module):
    """The non-linearity named by `hidden_act`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.name = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation, to any shape."""
        if self.name in _ACTIVATIONS:
            return _ACTIVATIONS[self.name](x)  # type: ignore[operator]
        return F.gelu(x, approximate="none" if self.name in EXACT_GELU else "tanh")


def _embedding(rows: int, width: int) -> nn.Embedding:
    """`nn.Embedding(rows, width)` that draws no random numbers on the device "meta". Torch would import its compiler
    for them, and a model is built there only to be loaded."""
    weight = torch.empty(rows, width)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding.from_pretrained(weight, freeze=False)


class BertEmbeddings(nn.Module):
    """Sum of word, position and token type embeddings (section 3, "Input/Output Representations")."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = _embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = _embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: PackedBatch) -> Tensor:
        """-> (T, H)"""
        embedded = self.word_embeddings(batch.input_ids)
        embedded = embedded + self._token_types(batch.token_type_ids)
        embedded = embedded + self.position_embeddings(batch.position_ids)
        return self.dropout(self.norm(embedded))

    def _token_types(self, token_type_ids: Tensor) -> Tensor:
        """(T,) -> (T, H)

        Two rows are interpolated, which is exact at 0 and 1. The backward pass of a look-up on a GPU adds the gradients
        of all tokens to one of two rows, nearly one after another (pytorch#20655).
        """
        weight = self.token_type_embeddings.weight
        if len(weight) != 2:
            return self.token_type_embeddings(token_type_ids)
        first, second = weight.unbind()
        return torch.lerp(first, second, token_type_ids[:, None].to(weight.dtype))


class FusedProjection(nn.Linear):
    """Queries, keys and values side by side: one matrix product instead of three."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)

    def query(self, x: Tensor) -> Tensor:
        """(rows, H) -> (rows, H)"""
        width = self.in_features
        return F.linear(x, self.weight[:width], self.bias[:width])

    def key_value(self, x: Tensor) -> Tensor:
        """(rows, H) -> (rows, 2H)"""
        width = self.in_features
        return F.linear(x, self.weight[width:], self.bias[width:])


class BertLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual and a layer norm after it."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.query_key_value = FusedProjection(hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(hidden, config.intermediate_size)
        self.activation = Activation(config)
        self.output = nn.Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, attention: Attention, output_index: Tensor | None = None) -> Tensor:
        """(T, H) -> (T, H), or (R, H) at the rows of `output_index`, (R,)."""
        if output_index is None:
            qkv = self.query_key_value(hidden).unflatten(-1, (3, self.heads, self.head_dim))
            context = attention.self_attention(qkv)  # (T, N, D)
        else:
            context = attention.cross_attention(*self.project_outputs(hidden, output_index))  # (R, N, D)
            hidden = hidden.index_select(0, output_index)
        dtype = hidden.dtype  # autocast gives norms in float32
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(context.flatten(1)))).to(dtype)
        inner = self.activation(self.intermediate(hidden))
        normed: Tensor = self.output_norm(hidden + self.dropout(self.output(inner)))
        return normed.to(dtype)

    def project_outputs(self, hidden: Tensor, output_index: Tensor) -> tuple[Tensor, Tensor]:
        """Queries at the output positions (R, N, D), keys and values of all tokens (T, 2, N, D)."""
        query = self.query_key_value.query(hidden.index_select(0, output_index))
        key_value = self.query_key_value.key_value(hidden)
        return (
            query.unflatten(-1, (self.heads, self.head_dim)),
            key_value.unflatten(-1, (2, self.heads, self.head_dim)),
        )


class BertEncoder(nn.Module):
    """Embeddings and layers, which all heads share."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.half_residual = False
        """Whether hidden states between layers have the precision of linear layers: 16 bits under autocast, instead of
        32. Norms compute in float32."""
        self.batch_invariant = False
        """Whether attention on a CPU must be batch invariant in float32 too; see `BucketedAttention`."""
        self.long_attention_in_bfloat16 = False
        """Whether attention of longer sequences may be in bfloat16 although the linear layers give float32; see
        `attention_for`."""

    def forward(self, batch: PackedBatch) -> Tensor:
        """Final hidden states: (R, H) at the batch's output positions, or (T, H) if it names none.

        The values of the batch are not checked here; the networks of `model.heads` check them.
        """
        num_outputs = batch.total_tokens if batch.outputs is None else len(batch.outputs.index)
        if batch.input_ids.device.type == "cpu" and batch.lengths is not None and not torch.is_grad_enabled():
            batch = batch.pad_to_bucket()  # training batches already have the size of a bucket
        hidden = self.embeddings(batch)
        if self.half_residual:
            hidden = hidden.to(_compute_dtype(hidden))
        heads = self.config.num_attention_heads, self.config.head_dim
        kernel = (hidden.device, _compute_dtype(hidden), *heads, self.batch_invariant, self.long_attention_in_bfloat16)
        attention = attention_for(batch.sequences, batch.sequences, *kernel)
        for layer in self.layers[:-1]:
            hidden = layer(hidden, attention)
        if batch.outputs is None:
            return self.layers[-1](hidden, attention)[:num_outputs]
        attention = attention_for(batch.outputs.sequences, batch.sequences, *kernel)
        return self.layers[-1](hidden, attention, batch.outputs.index)[:num_outputs]


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    """The precision of linear layers' results."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
