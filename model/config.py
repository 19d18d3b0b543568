"""What shape a BERT has. Field names are those of a Hugging Face `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model.errors import ConfigError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu", "swish", "tanh")

# Turc et al. 2019 (tiny to medium) and Devlin et al. 2018, section 3 (base, large).
_PRESETS: dict[str, tuple[int, int]] = {  # name: (layers, hidden size); 64 wide heads, 4x feed-forward
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Shape and hyperparameters of one BERT, checked when it is made.

    Raises:
        ConfigError: a field has a value that describes no model.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    classifier_dropout: float | None = None
    tie_word_embeddings: bool = True
    id2label: Mapping[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})
    temperature: float = 1.0
    """Divides the classifier's logits before the softmax (Guo et al. 2017). Not applied by the network
    itself, so that `transformers`, which knows no such field, computes the same logits."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} must be a positive integer, not {value!r}")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act {self.hidden_act!r} is none of {', '.join(ACTIVATIONS)}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name} must lie in [0, 1), not {value!r}")
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be positive, not {self.temperature!r}")
        if sorted(self.id2label) != list(range(len(self.id2label))) or not self.id2label:
            raise ConfigError(f"id2label must number its labels from 0, not {sorted(self.id2label)}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_labels(self) -> int:
        """How many classes a sequence-classification head tells apart."""
        return len(self.id2label)

    @property
    def labels(self) -> list[str]:
        """Label names in the order of the logits."""
        return [self.id2label[i] for i in range(self.num_labels)]

    def replace(self, **changes: Any) -> BertConfig:
        """A copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> BertConfig:
        """A published size by name: tiny, mini, small, medium, base or large."""
        if name not in _PRESETS:
            raise ConfigError(f"preset {name!r} is none of {', '.join(_PRESETS)}")
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
        """Read a Hugging Face `config.json`; fields that do not change the arithmetic are passed over.

        Raises:
            ConfigError: not a BERT, or a variant of it that is computed differently.
        """
        if values.get("model_type", "bert") != "bert":
            raise ConfigError(f"model_type is {values['model_type']!r}, only 'bert' is supported")
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise ConfigError(f"position_embedding_type {values['position_embedding_type']!r} is not supported")
        for flag in ("is_decoder", "add_cross_attention"):
            if values.get(flag):
                raise ConfigError(f"{flag} is true: this is a decoder, not an encoder")
        known = {f.name for f in dataclasses.fields(cls)}
        kept = {name: value for name, value in values.items() if name in known}
        if "id2label" in kept:
            try:
                kept["id2label"] = {int(key): str(label) for key, label in kept["id2label"].items()}
            except (AttributeError, TypeError, ValueError) as error:
                raise ConfigError(f"id2label is no mapping from numbers to names: {error}") from error
        elif isinstance(values.get("num_labels"), int) and values["num_labels"] > 0:
            kept["id2label"] = {i: f"LABEL_{i}" for i in range(values["num_labels"])}
        try:
            return cls(**kept)
        except TypeError as error:
            raise ConfigError(str(error)) from error

    def to_dict(self) -> dict[str, Any]:
        """The fields as `config.json` stores them."""
        values = dataclasses.asdict(self)
        values["id2label"] = {str(key): label for key, label in self.id2label.items()}
        values["label2id"] = {label: key for key, label in self.id2label.items()}
        return {"model_type": "bert", "position_embedding_type": "absolute"} | values
