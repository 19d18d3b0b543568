"""Loading and saving of checkpoint directories: configuration, weights and tokenizer.

A directory has the layout of Hugging Face: `config.json`, `model.safetensors` (or shards with an index) and
`tokenizer.json` (or `vocab.txt`). `transformers` loads what is saved here and the other way round. Weights are
read from safetensors only, because a pickle can execute code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from model.config import BertConfig
from model.errors import CheckpointError, ConfigError, printable
from model.files import check_readable, file_names, read_json, system_remedy
from model.heads import BertForPreTraining, BertForSequenceClassification
from model.packing import PackedBatch
from model.tokenizer import Tokenizer

Model = BertForPreTraining | BertForSequenceClassification

_PRETRAINING = ("BertForPreTraining", "BertForMaskedLM")
ARCHITECTURES = (*_PRETRAINING, "BertForSequenceClassification")
_LONGEST_NAME = 200
_LABEL_FIELDS = ("id2label", "num_labels", "problem_type", "thresholds")
"""Fields of `config.json` that only a classifier uses; those of other networks are ignored."""

# Our names and Hugging Face's. `query_key_value` is three tensors there and handled separately.
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
    """The contents of a directory. It can be called with texts."""

    config: BertConfig
    """Shape, labels and truncation; the same object as `model.config`."""
    model: Model
    """The network in evaluation mode, with its weights on the CPU."""
    tokenizer: Tokenizer
    path: Path
    """The directory."""
    name: str
    """`name` in `config.json`, as `export` writes it; without it, the directory's name."""

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str | tuple[str, str]]) -> Tensor:
        """Compute some dozens of texts or pairs, in one batch.

        Args:
            texts: single texts, or tuples of two. Those that are too long are cut by `config.truncation`.

        Returns:
            Scores of a classifier, (texts, num_labels), in the order of `config.labels`. Of another network, the
            probability of each word at each `[MASK]`, (masks, vocab_size), text after text.

        Raises:
            TextError: a text has no tokens or a lone surrogate, or a pair is for a model that takes none.
            ValueError: `texts` is empty.
        """
        config, tokenizer = self.config, self.tokenizer
        halves = [(text,) if isinstance(text, str) else text for text in texts]
        encode = partial(tokenizer.encode, max_length=config.max_position_embeddings, truncate=True)
        encodings = [encode(*both, truncation=config.truncation, spans=False) for both in halves]
        batch = PackedBatch.pack([each.ids for each in encodings], [each.token_type_ids for each in encodings])
        if isinstance(self.model, BertForSequenceClassification):
            return self.model.scores(self.model(batch))
        masks = [[i for i, token in enumerate(each.ids) if token == tokenizer.mask_id] for each in encodings]
        return self.model.masked_lm(self.model(batch.with_outputs(masks))).softmax(-1)


def load_checkpoint(
    directory: Path | str, *, dtype: torch.dtype = torch.float32, need_heads: bool = True
) -> Checkpoint:
    """Load the configuration, the weights and the tokenizer of a directory.

    Args:
        directory: a Hugging Face directory of a `BertForPreTraining`, `BertForMaskedLM` or
            `BertForSequenceClassification`.
        dtype: precision of the loaded weights; the file may have another.
        need_heads: if false, it may be the directory of any class that has BERT's encoder, such as `BertModel`. The
            network is a `BertForPreTraining`, whose missing heads are zero. It has `next_sentence` if there is a
            pooler.

    Raises:
        CheckpointError: a file is missing, invalid or unsupported; the message names it.
    """
    path = Path(directory)
    names = file_names(path)
    if "adapter_config.json" in names:
        advice = "merge it with model.merge_and_unload(), and save the result to another directory"
        raise CheckpointError(path, f"holds a PEFT adapter (adapter_config.json), not a whole model; {advice}")
    if "config.json" not in names and (found := [*path.glob("*/config.json"), *path.glob("snapshots/*/config.json")]):
        raise CheckpointError(path, f"has no config.json; did you mean {found[0].parent}?")
    values = read_json(path / "config.json")
    if _named(values) not in (None, "BertForSequenceClassification"):
        values = {name: value for name, value in values.items() if name not in _LABEL_FIELDS}
    try:
        config = BertConfig.from_dict(values)
    except ConfigError as error:
        raise CheckpointError(path / "config.json", str(error)) from None
    model = _build(path, config, _named(values), need_heads=need_heads)
    tokenizer = Tokenizer.load(path, segments=config.type_vocab_size)
    if tokenizer.vocab_size > config.vocab_size:
        advice = "call model.resize_token_embeddings(len(tokenizer)) after adding tokens, train, and save both"
        reason = f"vocab_size is {config.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens; {advice}"
        raise CheckpointError(path / "config.json", reason)
    name = printable(str(values.get("name") or path.resolve().name))[:_LONGEST_NAME]
    return Checkpoint(model.config, model.to(dtype).eval(), tokenizer, path, name)


load = load_checkpoint
"""The short name: `model.load(directory)(texts)`."""


def save_checkpoint(
    directory: Path | str, model: Model, tokenizer: Tokenizer, *, dtype: torch.dtype = torch.float32
) -> None:
    """Write a directory that `transformers` and `load_checkpoint` can load: `config.json`, `model.safetensors`,
    `tokenizer.json` and `tokenizer_config.json`.

    Args:
        directory: made if it is missing; it may be the one that the model was loaded from.
        model: the network to save, on any device.
        tokenizer: the tokenizer of its texts.
        dtype: precision of the weights in the file.

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
        raise CheckpointError(path, f"cannot be written: {error}{system_remedy(error)}") from error


def _save_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write to a temporary file and rename it, because the tensors may be mapped from the file they replace."""
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        save_file(tensors, temporary, metadata={"format": "pt"})
        shutil.copymode(file.with_name("config.json"), temporary)  # safetensors makes it readable by the owner only
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def architecture(model: Model) -> str:
    """Name of the Hugging Face class with the same heads: one of `ARCHITECTURES`."""
    if isinstance(model, BertForSequenceClassification):
        return "BertForSequenceClassification"
    return "BertForMaskedLM" if model.next_sentence is None else "BertForPreTraining"


def to_hugging_face(model: Model) -> dict[str, Tensor]:
    """The weights under Hugging Face's names: query, key and value separate, a tied decoder left out."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == "masked_lm.decoder.weight" and model.config.tie_word_embeddings:
            continue
        if ".query_key_value." in name:
            parts = zip(_QKV, tensor.detach().chunk(3), strict=True)
            tensors |= {_hugging_face_name(name, part): piece.clone() for part, piece in parts}
        elif name == "masked_lm.decoder.bias":
            tensors["cls.predictions.bias"] = tensor.detach()
            if not model.config.tie_word_embeddings:
                tensors["cls.predictions.decoder.bias"] = tensor.detach().clone()
        else:
            tensors[_hugging_face_name(name)] = tensor.detach()
    return tensors


def from_hugging_face(model: Model, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The state dict of `model`, from tensors under Hugging Face's names.

    Raises:
        CheckpointError: a tensor is missing, is not of floating point, has values that are not finite, or has another
            shape than the configuration implies.
    """
    state: dict[str, Tensor] = {}
    for name, own in model.state_dict().items():
        if ".query_key_value." in name:
            third = (own.shape[0] // 3, *own.shape[1:])
            pieces = [_take(tensors, (_hugging_face_name(name, part),), third, file) for part in _QKV]
            state[name] = torch.cat(pieces)
        else:
            state[name] = _take(tensors, _hugging_face_names(name, model.config), tuple(own.shape), file)
    return state


def _hugging_face_names(name: str, config: BertConfig) -> tuple[str, ...]:
    if name == "masked_lm.decoder.bias":
        return ("cls.predictions.decoder.bias", "cls.predictions.bias")  # the first is used, as in `transformers`
    if config.tie_word_embeddings and name in ("masked_lm.decoder.weight", "encoder.embeddings.word_embeddings.weight"):
        return (_WORD_EMBEDDINGS, _DECODER)  # one tensor, and some programs save it under its second name
    return (_hugging_face_name(name),)


def _hugging_face_name(name: str, part: str = "") -> str:
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
            reason = f"tensor {name} has shape {tuple(tensor.shape)}, but config.json implies {shape}"
            raise CheckpointError(file, reason)
        if not tensor.is_floating_point():
            raise CheckpointError(file, f"tensor {name} has dtype {tensor.dtype}, not a floating-point one")
        tensor = tensor.to(torch.float32)
        if not tensor.sum().isfinite():  # a single pass over the weights; finite ones do not add up to infinity
            raise CheckpointError(file, f"tensor {name} has values that are not finite")
        return tensor
    raise CheckpointError(file, f"tensor {names[0]} is missing; found: {', '.join([*tensors][:2])}, …")


def _named(values: Mapping[str, Any]) -> Any:
    """The architecture that `config.json` names, or None. It may be any JSON value."""
    architectures = values.get("architectures")
    return architectures[0] if isinstance(architectures, list) and architectures else None


def _build(path: Path, config: BertConfig, named: Any, *, need_heads: bool) -> Model:
    """The model that the configuration and the names of the tensors describe, with its weights."""
    if named not in (None, *ARCHITECTURES) and need_heads:
        advice = "a classifier can start from other encoders: bert-train classify TABLE finetune.pretrained=DIRECTORY"
        reason = f"unsupported architecture {named!r}; supported: {', '.join(ARCHITECTURES)}; {advice}"
        raise CheckpointError(path / "config.json", reason)
    file, found = _read_tensors(path)
    tensors = _with_current_names(found)
    if named is None and "classifier.weight" in tensors:
        named = "BertForSequenceClassification"
    elif named not in ARCHITECTURES:
        named = "BertForMaskedLM"
    if named in _PRETRAINING:
        config = config.replace(id2label=BertConfig().id2label, problem_type=None, thresholds=None)
    layers = config.num_hidden_layers
    last = f"bert.encoder.layer.{layers - 1}.output.dense.bias"
    _take(tensors, (last,), (config.hidden_size,), file)  # checked before millions of layers are built
    there = len({name.split(".")[3] for name in tensors if name.startswith("bert.encoder.layer.")})
    if there != layers:
        reason = f"num_hidden_layers is {layers}, but {file.name} has {there} layers"
        raise CheckpointError(path / "config.json", reason)
    if _has_own_decoder(tensors):
        config = config.replace(tie_word_embeddings=False)
    with torch.device("meta"):
        model = _empty_model(named, config, tensors, need_heads=need_heads)
    if not need_heads:
        heads = {name: own for name, own in to_hugging_face(model).items() if not name.startswith("bert.")}
        tensors = {name: torch.zeros(own.shape) for name, own in heads.items()} | tensors
    state = from_hugging_face(model, tensors, file)
    model.load_state_dict(state, assign=True)
    if isinstance(model, BertForPreTraining) and config.tie_word_embeddings:
        model.masked_lm.decoder.weight = model.encoder.embeddings.word_embeddings.weight
    return model


def _empty_model(named: str, config: BertConfig, tensors: Mapping[str, Tensor], *, need_heads: bool) -> Model:
    if named == "BertForSequenceClassification":
        return BertForSequenceClassification(config)
    # The published checkpoints are named BertForMaskedLM but have a next-sentence head.
    has_head = "bert.pooler.dense.weight" in tensors
    if need_heads:
        has_head = named == "BertForPreTraining" or (has_head and "cls.seq_relationship.weight" in tensors)
    return BertForPreTraining(config, next_sentence=has_head)


def _has_own_decoder(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the decoder differs from the word embeddings. As in `transformers`, this overrides the
    configuration's `tie_word_embeddings`."""
    decoder, word = tensors.get(_DECODER), tensors.get(_WORD_EMBEDDINGS)
    return decoder is not None and word is not None and not torch.equal(decoder, word)


def _read_tensors(path: Path) -> tuple[Path, dict[str, Tensor]]:
    """All tensors, and the file to name in an error about a missing one."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    names = file_names(path)
    if single.name in names:
        return single, dict(_tensors_of(single))
    if index.name in names:
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise CheckpointError(index, "has no weight_map")
        if invalid := [name for name in shards.values() if not _is_file_name(name)]:
            raise CheckpointError(index, f"names a shard that is not a file in this directory: {invalid[0]!r}")
        files = sorted({path / name for name in shards.values()})
        return index, {name: tensor for file in files for name, tensor in _tensors_of(file)}
    others = [name for name in sorted(names) if name.endswith(".safetensors")]
    if others and re.search(r"-\d+-of-\d+\.", others[0]):
        raise CheckpointError(index, f"is missing, but {others[0]} is a part of a model; copy this file too")
    advice = "load a model of another format in the program that made it, and call model.save_pretrained(DIRECTORY)"
    raise CheckpointError(single, f"is missing; {f'rename {others[0]} if it is the model' if others else advice}")


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name != ""


def _tensors_of(file: Path) -> Iterator[tuple[str, Tensor]]:
    check_readable(file)
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (`tensors` is not a mapping)
                yield name, tensors.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        if remedy := system_remedy(error):
            raise CheckpointError(file, f"cannot be read: {error}{remedy}") from None
        raise CheckpointError(file, f"is truncated or corrupt: {error}; copy it again") from None


def _with_current_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under current names. A prefix of all names, such as `model.` of a class that contains a BERT, is
    removed if the rest are the names of a BERT."""
    prefix = os.path.commonprefix([*tensors]).rpartition(".")[0] + "."  # noqa: RUF071 (names are not paths)
    renamed = {_current_name(name.removeprefix(prefix)): tensor for name, tensor in tensors.items()}
    fits = "bert.embeddings.position_embeddings.weight" in renamed
    return renamed if fits else {_current_name(name): tensor for name, tensor in tensors.items()}


def _current_name(name: str) -> str:
    """The current name of a tensor: checkpoints of 2018 name a layer norm's weight gamma and its bias beta, those of a
    bare encoder lack the prefix `bert.`, and torch's wrappers of any module (DDP, `torch.compile`, FSDP) add a part."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    name = re.sub(r"\b(module|_orig_mod|_\w+_wrapped_module)\.", "", name)
    return re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", name)
