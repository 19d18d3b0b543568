from __future__ import annotations

import json
import math
from typing import Any

import pytest
import transformers

from model import BertConfig
from model.errors import ConfigError


def test_config_defaults_are_bert_base() -> None:
    assert BertConfig() == BertConfig.preset("base")
    assert BertConfig().head_dim == 64


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    ],
)
def test_preset_has_its_published_shape(name: str, layers: int, hidden: int, heads: int) -> None:
    config = BertConfig.preset(name)
    shape = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
    assert shape == (layers, hidden, heads, 4 * hidden)


def test_preset_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'huge'; available: tiny, mini, small, medium, base, large"):
        BertConfig.preset("huge")


def test_config_to_dict_and_back_is_equal() -> None:
    config = BertConfig(
        vocab_size=99,
        hidden_size=48,
        num_attention_heads=6,
        type_vocab_size=1,
        classifier_dropout=0.2,
        tie_word_embeddings=False,
        id2label={0: "bad", 1: "fair", 2: "good"},
    )
    assert BertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_config_reads_what_transformers_writes() -> None:
    theirs = transformers.BertConfig(hidden_size=48, num_attention_heads=3, num_labels=5, hidden_act="relu")
    config = BertConfig.from_dict(theirs.to_dict())
    assert (config.hidden_size, config.head_dim, config.hidden_act) == (48, 16, "relu")
    assert config.labels == [f"LABEL_{i}" for i in range(5)]


def test_config_is_read_by_transformers() -> None:
    config = BertConfig.preset("mini", id2label={0: "NEGATIVE", 1: "POSITIVE"}, type_vocab_size=1)
    theirs = transformers.BertConfig.from_dict(config.to_dict())
    assert theirs.hidden_size == 256
    assert theirs.type_vocab_size == 1
    assert theirs.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    assert theirs.label2id == {"NEGATIVE": 0, "POSITIVE": 1}


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ({}, 2),
        ({"num_labels": 3}, 3),
        ({"num_labels": None, "id2label": None}, 2),
        ({"num_labels": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}, 3),
    ],
)
def test_config_labels_without_names_are_numbered(values: dict[str, Any], labels: int) -> None:
    assert BertConfig.from_dict(values).num_labels == labels


def test_config_ignores_fields_that_do_not_affect_the_computation() -> None:
    assert BertConfig.from_dict({"use_cache": True, "torch_dtype": "float16", "who": [1]}) == BertConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "roberta"}, "unsupported model_type 'roberta'; supported: 'bert'"),
        ({"position_embedding_type": "relative_key"}, "unsupported position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
    ],
)
def test_config_of_an_unsupported_variant_is_an_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_dict(values)


SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [None, "768", "abc", 0, -1, 768.0, math.nan, True, [768], {}, 10**30])
def test_config_size_must_be_a_positive_integer(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a positive integer"):
        BertConfig.from_dict({name: value})


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"])
@pytest.mark.parametrize("value", ["0.1", -0.1, 1.0, math.nan, math.inf, True, [0.1]])
def test_config_dropout_must_be_a_fraction(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be at least 0 and less than 1"):
        BertConfig.from_dict({name: value})


def test_config_only_classifier_dropout_may_be_null() -> None:
    assert BertConfig.from_dict({"classifier_dropout": None}).classifier_dropout is None
    with pytest.raises(ConfigError, match="hidden_dropout_prob"):
        BertConfig.from_dict({"hidden_dropout_prob": None})


@pytest.mark.parametrize("name", ["layer_norm_eps", "initializer_range"])
@pytest.mark.parametrize("value", [None, "1e-12", -1e-12, math.nan, math.inf, True])
def test_config_number_must_be_finite_and_not_negative(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be at least 0 and less than inf"):
        BertConfig.from_dict({name: value})


LONG = ("a" * 1001, "a\nb", "\x1b[31m", "\ud800")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 100, "num_attention_heads": 3}, "hidden_size 100 is not divisible"),
        ({"hidden_act": "mish"}, "unsupported hidden_act 'mish'; supported: gelu"),
        ({"hidden_act": None}, "unsupported hidden_act None; supported: gelu"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, not 'false'"),
        ({"truncation": "left"}, "unsupported truncation 'left'; supported: head, head_tail, tail"),
        *(
            ({"problem_type": kind}, "; supported: single_label_class.*, multi_label_class.*, regression")
            for kind in ("ranking", ["regression"], 1)
        ),
        ({"id2label": {}}, "id2label must number the labels from 0"),
        ({"id2label": {"1": "a", "2": "b"}}, "id2label must number the labels from 0"),
        ({"id2label": {"a": "b"}}, "id2label must map numbers to names"),
        ({"id2label": {"0": None, "x": None}}, "id2label must map numbers to names"),
        ({"id2label": ["a", "b"]}, "id2label must map numbers to names"),
        ({"id2label": 2}, "id2label must map numbers to names"),
        *(
            ({"id2label": {"0": label, "1": "b"}}, "a label is a string of at most 1000 characters, without")
            for label in LONG
        ),
        ({"num_labels": 0}, "num_labels must be a positive integer"),
        ({"num_labels": "3"}, "num_labels must be a positive integer"),
        ({"num_labels": 10**12}, "num_labels must be a positive integer"),
    ],
)
def test_config_error_names_the_invalid_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_dict(values)


@pytest.mark.parametrize("positions", [1, 2])
def test_config_needs_positions_for_one_token_between_cls_and_sep(positions: int) -> None:
    with pytest.raises(ConfigError, match=f"max_position_embeddings must be at least 3 .*, not {positions}"):
        BertConfig(max_position_embeddings=positions)


def test_config_label_names_must_be_strings() -> None:
    with pytest.raises(ConfigError, match="id2label has 5; a label is a string"):
        BertConfig(id2label={0: 5})  # type: ignore[dict-item]


def test_config_error_shortens_a_long_value() -> None:
    with pytest.raises(ConfigError) as caught:
        BertConfig.from_dict({"hidden_act": "x" * 100_000})
    assert len(str(caught.value)) < 300


def test_config_replace_validates_again() -> None:
    with pytest.raises(ConfigError, match="not divisible"):
        BertConfig().replace(num_attention_heads=7)


def test_config_labels_are_made_once() -> None:
    config = BertConfig(id2label={1: "POSITIVE", 0: "NEGATIVE"})
    assert config.labels == ["NEGATIVE", "POSITIVE"]
    assert config.labels is config.labels
    assert config.replace(id2label={0: "A"}).labels == ["A"]
