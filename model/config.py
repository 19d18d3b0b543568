"""Shape and hyperparameters of a BERT. Field names are those of a Hugging Face `config.json`."""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from model.errors import ConfigError

EXACT_GELU = ("gelu", "gelu_python")
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh")
ACTIVATIONS = (*EXACT_GELU, *TANH_GELU, "relu", "silu", "swish", "tanh")
Truncation = Literal["head", "head_tail", "tail"]
"""The part of a too long text to keep: its beginning, both ends, or its end."""
_TRUNCATIONS = get_args(Truncation)
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")

# Turc et al. 2019 (tiny to medium) and Devlin et al. 2018, section 3 (base, large).
_PRESETS: dict[str, tuple[int, int]] = {  # name: (layers, hidden size); heads of 64, feed-forward 4 times as wide
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

MAX_LABEL = 1000
"""Maximum characters of a label, because each response repeats its labels."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Larger values come from a broken file, and overflow a tensor or exhaust the memory.
_MAX_SIZE = 2**24
_MAX_LABELS = 2**16


@dataclass(frozen=True)
class BertConfig:
    """Shape and hyperparameters of one BERT, validated at construction.

    Raises:
        ConfigError: a field has an invalid value.
    """

    vocab_size: int = 30522
    """Rows of the word embeddings; at least the number of the tokenizer's tokens."""
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    """Must divide `hidden_size`."""
    intermediate_size: int = 3072
    """Width of the feed-forward layer."""
    hidden_act: str = "gelu"
    """The feed-forward layer's non-linearity: one of `ACTIVATIONS`."""
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    """Read and written for `transformers`. Training here ignores it: the variable-length attention kernel has no
    dropout."""
    max_position_embeddings: int = 512
    """Maximum number of tokens of an input, special tokens included."""
    type_vocab_size: int = 2
    """Number of token types; 1 for a model that takes no pairs."""
    initializer_range: float = 0.02
    """Standard deviation of new weights."""
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    """`transformers` reads it in `config.json`. Packed batches have no padding."""
    classifier_dropout: float | None = None
    """Dropout before a classifier's last layer; None: `hidden_dropout_prob`."""
    tie_word_embeddings: bool = True
    """Whether the masked-LM decoder's weight is the word embedding."""
    id2label: Mapping[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})
    """The name of each of a classifier's labels, numbered from 0 without gaps."""
    problem_type: str | None = None
    """The meaning of a classifier's logits: one of `PROBLEM_TYPES`; see `BertForSequenceClassification.scores`."""
    thresholds: Sequence[float] | None = None
    """Score of each label above which a text has the label, for a classifier with several labels per text. None: 0.5.
    Scores do not depend on it."""
    truncation: Truncation = "head"
    """The part of a too long text that `truncate` keeps: "head", its beginning, "tail", its end, or "head_tail", both
    ends."""

    def __post_init__(self) -> None:
        for size in (f for f in dataclasses.fields(self) if f.type == "int"):
            value = getattr(self, size.name)
            if not _is_number(value, int) or not 1 <= value <= _MAX_SIZE:
                raise ConfigError(f"{size.name} must be a positive integer, not {reprlib.repr(value)}")
        if self.max_position_embeddings < 3:
            given = f"must be at least 3 for [CLS], one token and [SEP], not {self.max_position_embeddings}"
            raise ConfigError(f"max_position_embeddings {given}")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            given = reprlib.repr(self.hidden_act)
            raise ConfigError(f"unsupported hidden_act {given}; supported: {', '.join(ACTIVATIONS)}")
        if not isinstance(self.tie_word_embeddings, bool):
            raise ConfigError(
                f"tie_word_embeddings must be true or false, not {reprlib.repr(self.tie_word_embeddings)}"
            )
        if (kind := self.problem_type) not in (None, *PROBLEM_TYPES):
            raise ConfigError(f"unsupported problem_type {reprlib.repr(kind)}; supported: {', '.join(PROBLEM_TYPES)}")
        check_truncation(self.truncation)
        self._check_fractions()
        _check_labels(self.id2label)
        if self.thresholds is not None and not _are_thresholds(self.thresholds, self.num_labels):
            raise ConfigError(f"thresholds must be a number for each label, not {reprlib.repr(self.thresholds)}")

    def _check_fractions(self) -> None:
        limits = {"hidden_dropout_prob": 1, "attention_probs_dropout_prob": 1, "classifier_dropout": 1}
        for name, limit in (limits | {"initializer_range": math.inf, "layer_norm_eps": math.inf}).items():
            value = getattr(self, name)
            if name == "classifier_dropout" and value is None:
                continue
            if not _is_number(value, int | float) or not 0 <= value < limit:
                raise ConfigError(f"{name} must be at least 0 and less than {limit}, not {reprlib.repr(value)}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_labels(self) -> int:
        """Number of classes of a sequence-classification head."""
        return len(self.id2label)

    @cached_property
    def labels(self) -> list[str]:
        """Label names in the order of the logits."""
        return [self.id2label[i] for i in range(self.num_labels)]

    @property
    def score_function(self) -> Literal["none", "sigmoid", "softmax"]:
        """The function that turns a classifier's logits into scores, named as in `transformers`.

        It is `softmax` where one label is right, `sigmoid` where several may be or there is only one, and `none` for a
        regression.
        """
        if self.problem_type == "regression":
            return "none"
        is_single = self.problem_type != "multi_label_classification" and self.num_labels > 1
        return "softmax" if is_single else "sigmoid"

    def replace(self, **changes: Any) -> BertConfig:
        """A copy with some fields changed, validated again. Raises ConfigError."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> BertConfig:
        """A published size (Devlin et al. 2018, section 3; Turc et al. 2019).

        Args:
            name: tiny, mini, small, medium, base or large.
            changes: fields that differ from the published size, and those that it does not fix.

        Raises:
            ConfigError: the preset is unknown, or a field has an invalid value.
        """
        if name not in _PRESETS:
            raise ConfigError(f"unknown preset {name!r}; available: {', '.join(_PRESETS)}")
        layers, hidden = _PRESETS[name]
        shape: dict[str, Any] = {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        return cls(**(shape | changes))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BertConfig:
        """Read the fields of a Hugging Face `config.json`, and ignore those that do not affect the computation.

        Args:
            values: the JSON object. `num_labels` stands in for a missing `id2label`.

        Raises:
            ConfigError: not a BERT, a variant of BERT that is not supported, or an invalid value.
        """
        if values.get("model_type", "bert") != "bert":
            raise ConfigError(f"unsupported model_type {values['model_type']!r}; supported: 'bert'")
        if (kind := values.get("position_embedding_type")) not in ("absolute", None):
            raise ConfigError(f"unsupported position_embedding_type {kind!r}; supported: 'absolute'")
        for flag in ("is_decoder", "add_cross_attention"):
            if values.get(flag):
                raise ConfigError(f"{flag} is true: the model is a decoder, not an encoder")
        if values.get("quantization_config"):
            raise ConfigError("quantization_config: the weights are quantized; save the model after model.dequantize()")
        known = {f.name for f in dataclasses.fields(cls)}
        kept = {name: value for name, value in values.items() if name in known}
        kept["id2label"] = _labels(values)
        if not _are_thresholds(kept.get("thresholds"), len(kept["id2label"])):
            kept["thresholds"] = None  # the name is not one of `transformers`, so others may mean something else by it
        return cls(**kept)

    def to_dict(self) -> dict[str, Any]:
        """The fields as `config.json` stores them; `from_dict` reads them."""
        values = dataclasses.asdict(self)
        values["id2label"] = {str(key): label for key, label in self.id2label.items()}
        values["label2id"] = {label: key for key, label in self.id2label.items()}
        return {"model_type": "bert", "position_embedding_type": "absolute"} | values


def check_truncation(value: object) -> None:
    """Raise ConfigError if a value is not one of `Truncation`."""
    if value not in _TRUNCATIONS:
        raise ConfigError(f"unsupported truncation {reprlib.repr(value)}; supported: {', '.join(_TRUNCATIONS)}")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _are_thresholds(value: Any, labels: int) -> bool:
    return isinstance(value, list) and len(value) == labels and all(_is_number(each, int | float) for each in value)


def _labels(values: Mapping[str, Any]) -> dict[int, str]:
    """Label names by index. The defaults are those of `transformers`: two labels, LABEL_0 and LABEL_1."""
    names, count = values.get("id2label"), values.get("num_labels")
    if names is not None:
        try:
            return {int(key): str(label) for key, label in names.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(f"id2label must map numbers to names, not {reprlib.repr(names)}") from None
    if count is None:
        count = 2
    if not _is_number(count, int) or not 1 <= count <= _MAX_LABELS:
        raise ConfigError(f"num_labels must be a positive integer, not {reprlib.repr(count)}")
    return {i: f"LABEL_{i}" for i in range(count)}


def _check_labels(id2label: Mapping[int, str]) -> None:
    if not isinstance(id2label, Mapping) or not id2label or set(id2label) != set(range(len(id2label))):
        raise ConfigError(f"id2label must number the labels from 0 without gaps, not {reprlib.repr(id2label)}")
    for label in id2label.values():
        if not isinstance(label, str) or len(label) > MAX_LABEL or _UNPRINTABLE.search(label):
            reason = f"at most {MAX_LABEL} characters, without control characters and halves of surrogate pairs"
            raise ConfigError(f"id2label has {reprlib.repr(label)}; a label is a string of {reason}: correct it")
