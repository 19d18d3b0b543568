"""A checkpoint directory to (config, weights, tokenizer) and back.

The directory is a Hugging Face one: `config.json`, `model.safetensors` (or shards with an index) and
`tokenizer.json` (or `vocab.txt`). `transformers` opens what is written here, and BERTs that it wrote are
opened here. Only safetensors is read: a pickle can run code.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from model.config import BertConfig
from model.errors import CheckpointError, ConfigError
from model.heads import BertForPreTraining, BertForSequenceClassification
from model.tokenizer import Tokenizer

Model = BertForPreTraining | BertForSequenceClassification

ARCHITECTURES = ("BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification")

# Ours on the left, Hugging Face's on the right. `query_key_value` is fused here and handled apart.
_LAYER_NAMES = {
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_NAMES = {
    "encoder.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
    "encoder.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
    "encoder.embeddings.token_type_embeddings": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "masked_lm.transform": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm.decoder": "cls.predictions.decoder",
    "next_sentence.pooler.dense": "bert.pooler.dense",
    "next_sentence.classifier": "cls.seq_relationship",
    "pooler.dense": "bert.pooler.dense",
    "classifier": "classifier",
}
_QKV = ("query", "key", "value")
_WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
_DECODER = "cls.predictions.decoder.weight"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a directory holds, ready to compute in evaluation mode."""

    config: BertConfig
    model: Model
    tokenizer: Tokenizer
    path: Path


def load_checkpoint(directory: Path | str, *, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Read a directory onto the CPU.

    Raises:
        CheckpointError: names the file and what is wrong with it.
    """
    path = Path(directory)
    if not _is_directory(path):
        raise CheckpointError(path, "is no directory")
    values = _read_json(path / "config.json")
    try:
        config = BertConfig.from_dict(values)
    except ConfigError as error:
        raise CheckpointError(path / "config.json", str(error)) from None
    model = _build(path, config, values.get("architectures"))
    if isinstance(model, BertForSequenceClassification):
        _check_problem(path / "config.json", config, values.get("problem_type"))
    tokenizer = Tokenizer.load(path, segments=config.type_vocab_size)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            path / "config.json",
            f"vocab_size is {config.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens",
        )
    return Checkpoint(model.config, model.to(dtype).eval(), tokenizer, path)


def _check_problem(file: Path, config: BertConfig, problem_type: object) -> None:
    """Whether logits are to be read as one class out of several, as everything here reads them.

    `transformers` trains a classifier of one label as a regression if nothing else is said.
    """
    if problem_type not in (None, "single_label_classification"):
        raise CheckpointError(
            file, f"problem_type is {problem_type!r}, only 'single_label_classification' is supported"
        )
    if config.num_labels == 1:
        raise CheckpointError(file, "id2label has one label: that is a regression, not a classification")


def save_checkpoint(
    directory: Path | str, model: Model, tokenizer: Tokenizer, *, dtype: torch.dtype = torch.float32
) -> None:
    """Write a directory that `transformers` opens too.

    Raises:
        CheckpointError: the directory cannot be written.
    """
    path = Path(directory)
    values = {
        "architectures": [architecture(model)],
        "dtype": str(dtype).removeprefix("torch."),
        **model.config.to_dict(),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.to(dtype).contiguous() for name, tensor in to_hugging_face(model).items()}
        _save_tensors(path / "model.safetensors", tensors)
        tokenizer.save(path, model.config.max_position_embeddings)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(path, f"cannot be written: {error}") from error


def _save_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write aside and rename: the weights may be mapped from the very file that they replace."""
    aside = file.with_name(f".{file.name}.tmp")
    try:
        save_file(tensors, aside, metadata={"format": "pt"})
        shutil.copymode(file.with_name("config.json"), aside)  # it would be the writer's alone
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def architecture(model: Model) -> str:
    """The Hugging Face class with the same heads."""
    if isinstance(model, BertForSequenceClassification):
        return "BertForSequenceClassification"
    return "BertForMaskedLM" if model.next_sentence is None else "BertForPreTraining"


def to_hugging_face(model: Model) -> dict[str, Tensor]:
    """The weights under Hugging Face's names, query, key and value apart, the tied decoder left out."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == "masked_lm.decoder.weight" and model.config.tie_word_embeddings:
            continue
        if ".query_key_value." in name:
            parts = zip(_QKV, tensor.detach().chunk(3), strict=True)
            tensors |= {_their_name(name, part): piece.clone() for part, piece in parts}
        elif name == "masked_lm.decoder.bias":
            tensors["cls.predictions.bias"] = tensor.detach()
            if not model.config.tie_word_embeddings:
                tensors["cls.predictions.decoder.bias"] = tensor.detach().clone()
        else:
            tensors[_their_name(name)] = tensor.detach()
    return tensors


def from_hugging_face(model: Model, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The state of `model` taken from tensors under Hugging Face's names.

    Raises:
        CheckpointError: a tensor is missing or has another shape than the configuration says.
    """
    state: dict[str, Tensor] = {}
    for name, own in model.state_dict().items():
        if ".query_key_value." in name:
            third = (own.shape[0] // 3, *own.shape[1:])
            pieces = [_take(tensors, (_their_name(name, part),), third, file) for part in _QKV]
            state[name] = torch.cat(pieces)
        else:
            state[name] = _take(tensors, _their_names(name, model.config), tuple(own.shape), file)
    return state


def _their_names(name: str, config: BertConfig) -> tuple[str, ...]:
    if name == "masked_lm.decoder.bias":
        return ("cls.predictions.decoder.bias", "cls.predictions.bias")  # if they differ, the first is used
    if name == "masked_lm.decoder.weight" and config.tie_word_embeddings:
        return (_WORD_EMBEDDINGS,)
    return (_their_name(name),)


def _their_name(name: str, part: str = "") -> str:
    stem, leaf = name.rsplit(".", 1)
    if match := re.fullmatch(r"encoder\.layers\.(\d+)\.(\w+)", stem):
        inner = f"attention.self.{part}" if match[2] == "query_key_value" else _LAYER_NAMES[match[2]]
        return f"bert.encoder.layer.{match[1]}.{inner}.{leaf}"
    return f"{_NAMES[stem]}.{leaf}"


def _take(tensors: Mapping[str, Tensor], names: tuple[str, ...], shape: tuple[int, ...], file: Path) -> Tensor:
    for name in names:
        if name not in tensors:
            continue
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                file, f"tensor {name} has shape {tuple(tensor.shape)}, config.json makes it {shape}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(file, f"tensor {name} holds {tensor.dtype}, not floating-point numbers")
        tensor = tensor.to(torch.float32)
        if not tensor.sum().isfinite():  # one pass, and nothing finite sums up to infinity here
            raise CheckpointError(file, f"tensor {name} holds numbers that are not finite")
        return tensor
    raise CheckpointError(file, f"tensor {names[0]} is missing")


def _build(path: Path, config: BertConfig, architectures: Any) -> Model:
    """A model with the heads that the weights have, filled with them."""
    file, tensors = _read_tensors(path)
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    if named is not None and named not in ARCHITECTURES:
        raise CheckpointError(
            path / "config.json", f"architecture {named!r} is none of {', '.join(ARCHITECTURES)}"
        )
    if named is None:
        named = "BertForSequenceClassification" if "classifier.weight" in tensors else "BertForMaskedLM"
    last = f"bert.encoder.layer.{config.num_hidden_layers - 1}.output.dense.weight"
    if last not in tensors:  # before layers without number are built
        raise CheckpointError(file, f"tensor {last} is missing")
    if _trained_untied(tensors):
        config = config.replace(tie_word_embeddings=False)
    with torch.device("meta"):
        model = _empty_model(named, config, tensors)
    state = from_hugging_face(model, tensors, file)
    model.load_state_dict(state, assign=True)
    if isinstance(model, BertForPreTraining) and config.tie_word_embeddings:
        model.masked_lm.decoder.weight = model.encoder.embeddings.word_embeddings.weight
    return model


def _empty_model(named: str, config: BertConfig, tensors: Mapping[str, Tensor]) -> Model:
    if named == "BertForSequenceClassification":
        return BertForSequenceClassification(config)
    # The published checkpoints call themselves BertForMaskedLM and carry a next-sentence head all the same.
    next_sentence = named == "BertForPreTraining" or tensors.keys() >= {
        "cls.seq_relationship.weight",
        "bert.pooler.dense.weight",
    }
    return BertForPreTraining(config, next_sentence=next_sentence)


def _trained_untied(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the file has a decoder of its own, whatever the configuration says: `transformers` looks too."""
    own, word = tensors.get(_DECODER), tensors.get(_WORD_EMBEDDINGS)
    return own is not None and word is not None and not torch.equal(own, word)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long
        return False


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(file, "is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(file, f"cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(file, "is not a JSON object")
    return values


def _read_tensors(path: Path) -> tuple[Path, dict[str, Tensor]]:
    """All tensors, under today's names, and the file to blame if one is missing."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return single, dict(_tensors_of(single))
    if index.is_file():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise CheckpointError(index, "has no weight_map")
        if strange := [name for name in shards.values() if not _is_file_name(name)]:
            raise CheckpointError(index, f"names a shard that is no file beside it: {strange[0]!r}")
        files = sorted({path / name for name in shards.values()})
        return index, {name: tensor for file in files for name, tensor in _tensors_of(file)}
    if pickles := sorted(file.name for file in path.glob("*.bin")):
        raise CheckpointError(
            path, f"holds only pickled weights ({pickles[0]}), which can run code; save it as safetensors first"
        )
    raise CheckpointError(single, "is missing")


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name != ""


def _tensors_of(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                yield _todays_name(name), tensors.get_tensor(name)
    except FileNotFoundError:
        raise CheckpointError(file, "is missing") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(file, f"is truncated or corrupt: {error}") from None


def _todays_name(name: str) -> str:
    """Checkpoints from 2018 call a layer norm's weight gamma and its bias beta."""
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: "LayerNorm." + _OLD_NAMES[m[1]], name)


_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
