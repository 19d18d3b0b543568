from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    PackedBatch,
    Tokenizer,
    load,
    load_checkpoint,
    save_checkpoint,
)
from model.config import ACTIVATIONS
from model.errors import CheckpointError, PairError, printable
from tests.model.reference import (
    VOCAB,
    Sequences,
    assert_same,
    our_answers,
    randomise,
    save_theirs,
    their_answers,
    their_config,
    their_model,
)

ARCHITECTURES = ("BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification")

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"num_hidden_layers": 5, "hidden_size": 24, "num_attention_heads": 1},
    "one layer": {"num_hidden_layers": 1, "intermediate_size": 37},
    "many heads": {"hidden_size": 48, "num_attention_heads": 12},
    "vocabulary": {"vocab_size": 1009, "max_position_embeddings": 7},
    "long": {"max_position_embeddings": 600},
    "one segment": {"type_vocab_size": 1},
    "untied": {"tie_word_embeddings": False},
    "coarse norm": {"layer_norm_eps": 1e-3},
    "three labels": {"id2label": {0: "bad", 1: "fair", 2: "good"}},
    **{name: {"hidden_act": name} for name in ACTIVATIONS[1:]},
}


def sequences_for(config: Any) -> Sequences:
    return Sequences.random(config.vocab_size, config.max_position_embeddings, config.type_vocab_size)


def assert_equal_logits(
    ours: BertForPreTraining | BertForSequenceClassification, theirs: Any, tolerance: float = 1e-5
) -> None:
    """Compare a network with one of `transformers` on a few sequences."""
    sequences = sequences_for(theirs.config)
    assert_same(our_answers(ours, sequences), their_answers(theirs, sequences), tolerance)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_checkpoint_of_transformers_gives_equal_logits_here(
    tmp_path: Path, architecture: str, shape: dict[str, Any]
) -> None:
    theirs = their_model(architecture, **shape)
    checkpoint = load_checkpoint(save_theirs(tmp_path, theirs))
    assert_equal_logits(checkpoint.model, theirs)


@pytest.mark.parametrize("has_pooler", [True, False])
def test_checkpoint_without_heads_gives_equal_hidden_states(tmp_path: Path, *, has_pooler: bool) -> None:
    theirs = transformers.BertModel(their_config(), add_pooling_layer=has_pooler).eval()
    model = load_checkpoint(save_theirs(tmp_path, theirs), need_heads=False).model
    assert isinstance(model, BertForPreTraining)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expected, hidden = theirs(input_ids=ids), model(PackedBatch.pack(ids.tolist(), [[0] * 20]))
        torch.testing.assert_close(hidden, expected.last_hidden_state[0], atol=1e-5, rtol=1e-5)
        assert (model.next_sentence is not None) == has_pooler
        if model.next_sentence:
            pooled = model.next_sentence.pooler(hidden[:1])
            torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_checkpoint_gives_equal_logits_in_transformers(
    tmp_path: Path, letters: Tokenizer, architecture: str, shape: dict[str, Any]
) -> None:
    values = their_model(architecture, **shape).config.to_dict()
    ours = our_model(architecture, BertConfig.from_dict(values))
    save_checkpoint(tmp_path, ours, letters)
    assert_equal_logits(ours, opened_by_transformers(tmp_path, architecture))


def our_model(
    architecture: str, config: BertConfig, seed: int = 0
) -> BertForPreTraining | BertForSequenceClassification:
    model: BertForPreTraining | BertForSequenceClassification
    if architecture == "BertForSequenceClassification":
        model = BertForSequenceClassification(config)
    else:
        model = BertForPreTraining(config, next_sentence=architecture == "BertForPreTraining")
    randomise(model, seed)
    return model.eval()


def opened_by_transformers(directory: Path, architecture: str) -> Any:
    """With the class that `config.json` names, and not one key missing or left over."""
    assert json.loads((directory / "config.json").read_text())["architectures"] == [architecture]
    model, info = getattr(transformers, architecture).from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    return model


SMALL = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_checkpoint_save_and_load_keep_every_bit(tmp_path: Path, letters: Tokenizer, architecture: str) -> None:
    labels = {"id2label": {0: "NEGATIVE", 1: "POSITIVE"}} if architecture == "BertForSequenceClassification" else {}
    ours = our_model(architecture, SMALL.replace(**labels))
    save_checkpoint(tmp_path, ours, letters)
    loaded = load_checkpoint(tmp_path)
    assert type(loaded.model) is type(ours)
    assert loaded.config == ours.config == loaded.model.config
    assert loaded.tokenizer.to_json() == letters.to_json()
    state = ours.state_dict()
    assert loaded.model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.model.state_dict().items())


def test_checkpoint_model_is_in_evaluation_mode_and_trainable(tmp_path: Path, letters: Tokenizer) -> None:
    save_checkpoint(tmp_path, our_model("BertForPreTraining", SMALL), letters)
    model = load_checkpoint(tmp_path).model
    assert not model.training
    assert isinstance(model, BertForPreTraining)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.masked_lm.decoder.weight is model.encoder.embeddings.word_embeddings.weight


def test_checkpoint_can_replace_the_one_it_was_loaded_from(tmp_path: Path, letters: Tokenizer) -> None:
    ours = our_model("BertForPreTraining", SMALL)
    save_checkpoint(tmp_path, ours, letters)
    loaded = load_checkpoint(tmp_path)  # its weights may be mapped from the file
    save_checkpoint(tmp_path, loaded.model, loaded.tokenizer)
    again = load_checkpoint(tmp_path).model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in ours.state_dict().items())
    assert not list(tmp_path.glob(".*")), "something was left lying about"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_checkpoint_in_16_bits_is_loaded_by_both(tmp_path: Path, letters: Tokenizer, dtype: torch.dtype) -> None:
    ours = our_model("BertForPreTraining", SMALL)
    save_checkpoint(tmp_path, ours, letters, dtype=dtype)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    loaded = load_checkpoint(tmp_path)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    sequences = sequences_for(SMALL)
    assert_same(our_answers(loaded.model, sequences), our_answers(ours, sequences), tolerance=5e-2)
    assert_equal_logits(loaded.model, opened_by_transformers(tmp_path, "BertForPreTraining"))


def test_checkpoint_can_be_loaded_in_another_precision(tmp_path: Path, letters: Tokenizer) -> None:
    save_checkpoint(tmp_path, our_model("BertForPreTraining", SMALL), letters)
    model = load_checkpoint(tmp_path, dtype=torch.bfloat16).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


# --- variants of the layout ----------------------------------------------------------------------------------


def test_checkpoint_shards_are_joined(tmp_path: Path) -> None:
    theirs = their_model("BertForPreTraining")
    save_theirs(tmp_path, theirs, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_equal_logits(load_checkpoint(tmp_path).model, theirs)


def edit_tensors(directory: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}  # not mapped from the file
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def edit_config(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForSequenceClassification"])
@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"^bert\.", ""),
        ("^", "module."),
        ("^", "model.encoder."),
        (r"^(bert\.)?", "_orig_mod.module."),
        (r"(?<=layer\.\d\.)", "_orig_mod._fsdp_wrapped_module."),
        (r"^bert\.", "bert.module."),
        (r"bert\.embeddings\.word_embeddings", "cls.predictions.decoder"),  # one tensor if they are tied
        (r"LayerNorm\.(weight|bias)", lambda name: "LayerNorm." + {"weight": "gamma", "bias": "beta"}[name[1]]),  # 2018
    ],
)
def test_checkpoint_tensors_with_other_names_are_found(
    tmp_path: Path, architecture: str, pattern: str, new: str | Callable[[re.Match[str]], str]
) -> None:
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[re.sub(pattern, new, name)] = tensors.pop(name)

    theirs = their_model(architecture)
    edit_tensors(save_theirs(tmp_path, theirs), rename)
    assert_equal_logits(load_checkpoint(tmp_path).model, theirs)


def test_checkpoint_without_pooler_has_no_next_sentence_head(tmp_path: Path) -> None:
    edit_config(save_theirs(tmp_path, their_model("BertForPreTraining")), architectures=["BertForMaskedLM"])
    edit_tensors(tmp_path, lambda tensors: tensors.__delitem__("bert.pooler.dense.weight"))
    model = load_checkpoint(tmp_path).model
    assert isinstance(model, BertForPreTraining)
    assert model.next_sentence is None


@pytest.mark.parametrize(
    ("architecture", "named"),
    [*((each, None) for each in ARCHITECTURES), ("BertForPreTraining", ["BertForMaskedLM"])],  # as published ones are
)
def test_checkpoint_without_architecture_is_recognised_by_its_weights(
    tmp_path: Path, architecture: str, named: list[str] | None
) -> None:
    theirs = their_model(architecture)
    edit_config(save_theirs(tmp_path, theirs), architectures=named)
    assert_equal_logits(load_checkpoint(tmp_path).model, theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_checkpoint_decoder_that_differs_from_the_embedding_is_used(tmp_path: Path, name: str, tied: bool) -> None:
    """`transformers` then unties it, against the configuration."""
    save_theirs(tmp_path, their_model("BertForMaskedLM", tie_word_embeddings=tied))
    shape = (61, 32) if name.endswith("weight") else (61,)
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: torch.full(shape, 0.25).cumsum(0)}))
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path, dtype=torch.float32)
    checkpoint = load_checkpoint(tmp_path)
    assert_equal_logits(checkpoint.model, theirs, tolerance=1e-4)
    save_checkpoint(tmp_path / "again", checkpoint.model, checkpoint.tokenizer)
    again = opened_by_transformers(tmp_path / "again", "BertForMaskedLM")
    assert_equal_logits(checkpoint.model, again, tolerance=1e-4)


def test_checkpoint_decoder_that_equals_the_embedding_stays_tied(tmp_path: Path) -> None:
    def repeat(tensors: dict[str, Tensor]) -> None:
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()

    edit_tensors(save_theirs(tmp_path, their_model("BertForMaskedLM")), repeat)
    model = load_checkpoint(tmp_path).model
    assert isinstance(model, BertForPreTraining)
    assert model.masked_lm.decoder.weight is model.encoder.embeddings.word_embeddings.weight


def test_checkpoint_unused_tensors_are_ignored(tmp_path: Path) -> None:
    extra = {"bert.embeddings.position_ids": torch.arange(24), "something.else": torch.ones(2)}
    edit_tensors(save_theirs(tmp_path, their_model("BertForMaskedLM")), lambda tensors: tensors.update(extra))
    load_checkpoint(tmp_path)


def test_checkpoint_is_loaded_by_auto_classes(tmp_path: Path, letters: Tokenizer) -> None:
    save_checkpoint(tmp_path, our_model("BertForMaskedLM", SMALL), letters)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "BertForMaskedLM"
    assert tokenizer("Hello, [MASK]!")["input_ids"] == letters.encode("Hello, [MASK]!").input_ids
    assert len(tokenizer("hello " * 100, truncation=True)["input_ids"]) == SMALL.max_position_embeddings


def test_checkpoint_with_one_token_type_refuses_pairs(tmp_path: Path, letters: Tokenizer) -> None:
    save_checkpoint(tmp_path, our_model("BertForPreTraining", SMALL.replace(type_vocab_size=1)), letters)
    tokenizer = load_checkpoint(tmp_path).tokenizer
    assert tokenizer.encode("hello world").token_type_ids == [0, 0, 0, 0]
    with pytest.raises(PairError, match="takes single texts"):
        tokenizer.encode("a", "pair")


def test_checkpoint_computes_texts_and_pairs_as_transformers_does(tmp_path: Path, letters: Tokenizer) -> None:
    save_checkpoint(tmp_path, our_model("BertForSequenceClassification", SMALL), letters)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    texts: list[str | tuple[str, str]] = ["hello", ("hello", "world"), "hello " * 100]
    found = load(tmp_path)(texts)
    for text, row in zip(texts, found, strict=True):
        both = [text] if isinstance(text, str) else text
        with torch.no_grad():
            logits = theirs(**tokenizer(*both, truncation=True, return_tensors="pt")).logits
        torch.testing.assert_close(row, logits[0].softmax(-1))


def test_checkpoint_computes_the_words_at_each_mask(tmp_path: Path, letters: Tokenizer) -> None:
    save_checkpoint(tmp_path, our_model("BertForPreTraining", SMALL), letters)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = theirs(**tokenizer("a [MASK] [MASK]", return_tensors="pt")).logits[0, 2:4]
    found = load(tmp_path)(["hello", "a [MASK] [MASK]"])
    torch.testing.assert_close(found, logits.softmax(-1))


def test_public_names_are_listed_without_being_imported() -> None:
    package = sys.modules["model"]
    assert dir(package) == package.__all__
    assert all(hasattr(package, name) for name in dir(package))


# --- broken directories -------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path, letters: Tokenizer) -> Path:
    """A sound checkpoint, to be broken."""
    save_checkpoint(tmp_path / "bert", our_model("BertForPreTraining", SMALL), letters)
    return tmp_path / "bert"


def refusal(directory: Path | str) -> CheckpointError:
    """The error, which must be one, and must not trail the error of some library."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(directory)
    lines = traceback.format_exception(caught.value)
    assert sum(line.startswith("Traceback") for line in lines) == 1, "".join(lines)
    assert str(caught.value) == printable(f"{caught.value.path}: {caught.value.reason}")
    return caught.value


Damage = Callable[[Path], object]


def write(name: str, content: bytes | str) -> Damage:
    return lambda path: (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def truncate(name: str, keep: float) -> Damage:
    return lambda path: (path / name).write_bytes(
        (path / name).read_bytes()[: int(keep * (path / name).stat().st_size)]
    )


def remove(*names: str) -> Damage:
    return lambda path: [(path / name).unlink() for name in names]


def config(**changes: Any) -> Damage:
    return lambda path: edit_config(path, **changes)


def classifier(**changes: Any) -> Damage:
    return config(architectures=["BertForSequenceClassification"], **changes)


def tensor(name: str, value: Tensor | None) -> Damage:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[name]
        if value is not None:
            tensors[name] = value

    return lambda path: edit_tensors(path, change)


def last_layer_alone(path: Path) -> None:
    edit_tensors(path, lambda t: t.update({"bert.encoder.layer.499.output.dense.bias": torch.zeros(16)}))
    edit_config(path, num_hidden_layers=500)


def index(weight_map: Any) -> Damage:
    def damage(path: Path) -> None:
        (path / "model.safetensors").rename(path / "model-1.safetensors")
        names = load_file(path / "model-1.safetensors")
        mapped = dict.fromkeys(names, weight_map) if isinstance(weight_map, str) else weight_map
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapped}))

    return damage


def too_many_words(path: Path) -> None:
    Tokenizer.from_vocab([*VOCAB, "four", "words", "too", "many"]).save(path)


LAST = "bert.encoder.layer.1.output.dense.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.bias"

DAMAGES: dict[str, tuple[Damage, str, str]] = {
    # config.json
    "no config": (remove("config.json"), "config.json", "is missing"),
    "empty config": (write("config.json", ""), "config.json", "cannot be read as JSON"),
    "config cut short": (truncate("config.json", 0.5), "config.json", "cannot be read as JSON"),
    "config in another encoding": (write("config.json", b'{"name": "\xe4"}'), "config.json", "cannot be read as JSON"),
    "config nested without end": (write("config.json", "[" * 100_000), "config.json", "cannot be read as JSON"),
    "config is a list": (write("config.json", "[]"), "config.json", "is not a JSON object"),
    "not a BERT": (config(model_type="gpt2"), "config.json", "unsupported model_type 'gpt2'"),
    "no such architecture": (
        config(architectures=["BertForX"]),
        "config.json",
        "unsupported architecture 'BertForX'",
    ),
    "odd architecture": (config(architectures=[["x"]]), "config.json", "supported: BertForPreTraining"),
    "a bare encoder": (
        config(architectures=["BertModel"]),
        "config.json",
        "a classifier can start from other encoders: bert-train classify TABLE finetune.pretrained=DIRECTORY",
    ),
    "size of a wrong type": (
        config(hidden_size="abc"),
        "config.json",
        "hidden_size must be a positive integer",
    ),
    "odd labels": (classifier(id2label=["a"]), "config.json", "id2label must map numbers to names"),
    # weights
    "no weights": (remove("model.safetensors"), "model.safetensors", "is missing"),
    "empty weights": (write("model.safetensors", b""), "model.safetensors", "is truncated or corrupt"),
    "weights cut short": (truncate("model.safetensors", 0.7), "model.safetensors", "is truncated or corrupt"),
    "weights cut in the header": (truncate("model.safetensors", 0.1), "model.safetensors", "is truncated"),
    "weights are a page": (write("model.safetensors", "<html>" * 99), "model.safetensors", "is truncated or"),
    "missing tensor": (tensor(QUERY, None), "model.safetensors", f"tensor {QUERY} is missing"),
    "missing last layer": (tensor(LAST, None), "model.safetensors", f"tensor {LAST} is missing"),
    "fewer layers than configured": (
        config(num_hidden_layers=9_999_999),
        "model.safetensors",
        "tensor bert.encoder.layer.9999998.output.dense.bias is missing; found: bert.embeddings",
    ),
    "a last layer without those before it": (
        last_layer_alone,
        "config.json",
        "num_hidden_layers is 500, but model.safetensors has 3 layers",
    ),
    "more layers than configured": (config(num_hidden_layers=1), "config.json", "model.safetensors has 2 layers"),
    "another shape": (
        tensor(QUERY, torch.ones(8)),
        "model.safetensors",
        r"shape \(8,\), but config.json implies",
    ),
    "scalar": (tensor(QUERY, torch.tensor(1.0)), "model.safetensors", r"has shape \(\)"),
    "other vocabulary": (
        config(vocab_size=39),
        "model.safetensors",
        r"\(40, 16\), but config.json implies \(39,",
    ),
    "integers": (tensor(QUERY, torch.ones(16, dtype=torch.int8)), "model.safetensors", "has dtype torch.int8"),
    "not a number": (tensor(QUERY, torch.full((16,), torch.nan)), "model.safetensors", "not finite"),
    "infinite": (tensor(LAST, torch.full((16, 24), torch.inf)), "model.safetensors", "not finite"),
    "no such shard": (index("gone.safetensors"), "gone.safetensors", "is missing"),
    "no weight map": (index([]), "model.safetensors.index.json", "has no weight_map"),
    "empty weight map": (index({}), "model.safetensors.index.json", "is missing"),
    "shard elsewhere": (
        index("../bert/model-1.safetensors"),
        "model.safetensors.index.json",
        "not a file in this directory",
    ),
    "shard at the root": (index("/etc/passwd"), "model.safetensors.index.json", "not a file in this directory"),
    "shard without a name": (
        index({"x": 5}),
        "model.safetensors.index.json",
        "not a file in this directory: 5",
    ),
    # tokenizer
    "no tokenizer": (remove("tokenizer.json"), "", "has neither tokenizer.json nor vocab.txt"),
    "tokenizer cut short": (
        truncate("tokenizer.json", 0.5),
        "tokenizer.json",
        "is not a usable WordPiece tokenizer",
    ),
    "tokenizer larger than the model": (
        too_many_words,
        "config.json",
        "vocab_size is 40, but the tokenizer has 41 tokens; call model.resize_token_embeddings",
    ),
}


@pytest.mark.parametrize(("damage", "file", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_checkpoint_error_names_the_file_and_the_reason(
    directory: Path, damage: Damage, file: str, reason: str
) -> None:
    damage(directory)
    error = refusal(directory)
    assert error.path == directory / file
    assert re.search(reason, error.reason)


# --- labels -------------------------------------------------------------------------------------------------

PROBLEMS: dict[str, dict[str, Any]] = {
    "one of two": {},
    "one of three": {"num_labels": 3, "problem_type": "single_label_classification"},
    "several of three": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "one label": {"num_labels": 1},
    "one label that may apply": {"num_labels": 1, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "regression of two numbers": {"num_labels": 2, "problem_type": "regression"},
}


@pytest.mark.parametrize("changes", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_scores_equal_those_of_the_pipeline_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs = their_model("BertForSequenceClassification", **changes)
    checkpoint = load_checkpoint(save_theirs(tmp_path, theirs))
    assert isinstance(checkpoint.model, BertForSequenceClassification)
    assert checkpoint.config.problem_type == changes.get("problem_type")
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None)
    for text in ("hello world", "a b c"):
        encoding = checkpoint.tokenizer.encode(text)
        logits = our_answers(checkpoint.model, Sequences([encoding.input_ids], [encoding.token_type_ids]))["labels"]
        scores = dict(zip(checkpoint.config.labels, checkpoint.model.scores(logits)[0].tolist(), strict=True))
        assert scores == pytest.approx({answer["label"]: answer["score"] for answer in pipeline([text])[0]}, abs=1e-5)


# --- what a directory holds in place of a model -------------------------------------------------------------


def replaced(name: str, content: bytes = b"") -> Damage:
    """The weights are missing, and another file is there."""
    return lambda path: ((path / "model.safetensors").unlink(), (path / name).write_bytes(content))


def in_subdirectory(name: str) -> Damage:
    def move(path: Path) -> None:
        files = list(path.iterdir())
        (path / name).mkdir(parents=True)
        for file in files:
            file.rename(path / name / file.name)

    return move


def linked(name: str) -> Damage:
    return lambda path: ((path / name).unlink(), (path / name).symlink_to("../blobs/4d7a"))


def directory_instead(name: str) -> Damage:
    return lambda path: ((path / name).unlink(), (path / name).mkdir())


def among_others(path: Path) -> None:
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[f"a.{name}"] = tensors.pop(name)
        tensors["b.bert.embeddings.position_embeddings.weight"] = torch.zeros(12, 16)

    edit_tensors(path, rename)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 438000000\n"

IN_PLACE: dict[str, tuple[Damage, str, str]] = {
    "adapter": (
        write("adapter_config.json", "{}"),
        "",
        r"holds a PEFT adapter \(adapter_config.json\).*merge_and_unload",
    ),
    "adapter without config": (
        lambda path: (path / "config.json").rename(path / "adapter_config.json"),
        "",
        "holds a PEFT adapter",
    ),
    "a pickle": (
        replaced("pytorch_model.bin"),
        "model.safetensors",
        r"is missing; load a model of another format .* call model.save_pretrained\(DIRECTORY\)",
    ),
    "variant": (replaced("model.fp16.safetensors"), "model.safetensors", "rename model.fp16.safetensors if it is"),
    "shards without an index": (
        replaced("model-00001-of-00002.safetensors"),
        "model.safetensors.index.json",
        "is missing, but model-00001-of-00002.safetensors is a part of a model; copy this file too",
    ),
    "checkpoint of a trainer": (in_subdirectory("checkpoint-500"), "", "did you mean .*/bert/checkpoint-500?"),
    "cache of the hub": (in_subdirectory("snapshots/1dbc"), "", "did you mean .*/bert/snapshots/1dbc?"),
    "weights are a link": (
        linked("model.safetensors"),
        "model.safetensors",
        "is a link to ../blobs/4d7a, which is missing",
    ),
    "config is a link": (linked("config.json"), "config.json", "is a link to ../blobs/4d7a, which is missing; copy"),
    "weights are a pointer": (
        write("model.safetensors", LFS),
        "model.safetensors",
        "is a Git LFS pointer.*git lfs pull",
    ),
    "config is a pointer": (write("config.json", LFS), "config.json", "is a Git LFS pointer"),
    "shard is a pointer": (
        lambda path: (index("model-1.safetensors")(path), (path / "model-1.safetensors").write_bytes(LFS)),
        "model-1.safetensors",
        "is a Git LFS pointer",
    ),
    "weights are a directory": (
        directory_instead("model.safetensors"),
        "model.safetensors",
        "cannot be read: Is a dir",
    ),
    "quantized": (config(quantization_config={"load_in_8bit": True}), "config.json", "weights are quantized; save"),
    "a network among others": (among_others, "model.safetensors", "is missing; found: a.bert.embeddings"),
}


@pytest.mark.parametrize(("damage", "file", "reason"), IN_PLACE.values(), ids=IN_PLACE.keys())
def test_checkpoint_error_says_what_is_there_instead(directory: Path, damage: Damage, file: str, reason: str) -> None:
    damage(directory)
    error = refusal(directory)
    assert error.path == directory / file
    assert re.search(reason, error.reason), error.reason


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file system that cannot map files")
def test_checkpoint_on_a_file_system_that_cannot_map_files_is_named(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to("/proc/self/status")
    error = refusal(directory)
    assert error.path == directory / "model.safetensors"
    assert error.reason.endswith("its file system cannot map files into memory; copy it to a local disk")


@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForMaskedLM"])
@pytest.mark.parametrize(
    "labels", [{"id2label": {"0": "a", "2": "b"}}, {"id2label": {}}, {"num_labels": 0}, {"problem_type": "tokens"}]
)
def test_checkpoint_for_pretraining_ignores_fields_of_labels(
    directory: Path, architecture: str, labels: dict[str, Any]
) -> None:
    edit_config(directory, architectures=[architecture], **labels)
    assert load_checkpoint(directory).config == SMALL
    assert load_checkpoint(directory).name == directory.name
    edit_config(directory, name="mine\n")
    assert load_checkpoint(directory).name == r"mine\n"


def test_checkpoint_for_pretraining_without_a_name_keeps_no_labels(directory: Path) -> None:
    edit_config(directory, architectures=None, id2label={"0": "a", "1": "b", "2": "c"})
    assert load_checkpoint(directory).config == SMALL


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", ""])
def test_checkpoint_file_without_permission_is_named(directory: Path, name: str) -> None:
    with TemporaryDirectory() as folder:  # the parents of `directory` are closed to other users
        path = directory.rename(Path(folder) / "bert")
        Path(folder).chmod(0o755)
        (path / name).chmod(0o000)
        with as_other_user():
            error = refusal(path)
        (path / name).chmod(0o700)
    assert error.path == path / name
    assert re.match(r"cannot be read: Permission denied; check its permissions for the user id \d+", error.reason)


@contextmanager
def as_other_user() -> Iterator[None]:
    """Without the rights of root, who may read any file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("path", ["nowhere", "x" * 5000, "nul\0"])
def test_checkpoint_error_names_a_missing_directory(path: str) -> None:
    assert refusal(path).reason.startswith("is not a directory; to download a model, run: hf download")


def test_checkpoint_file_in_place_of_a_directory_is_an_error(directory: Path) -> None:
    assert refusal(directory / "config.json").reason.startswith("is not a directory; give the directory of the model")


@pytest.mark.parametrize("position", range(0, 400, 13))
def test_checkpoint_wrong_byte_in_the_header_is_an_error_or_harmless(directory: Path, position: int) -> None:
    content = bytearray((directory / "model.safetensors").read_bytes())
    content[position] ^= 0x15
    expected = load_checkpoint(directory).model.state_dict()
    (directory / "model.safetensors").write_bytes(content)
    with suppress(CheckpointError):
        found = load_checkpoint(directory).model.state_dict()
        assert all(found[name].equal(tensor) for name, tensor in expected.items())


def test_checkpoint_error_names_a_directory_that_cannot_be_written(tmp_path: Path, letters: Tokenizer) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file/bert: cannot be written"):
        save_checkpoint(tmp_path / "file" / "bert", our_model("BertForMaskedLM", SMALL), letters)
