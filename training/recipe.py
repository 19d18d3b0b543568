"""The recipe of a run: one TOML file, strict and typed, with overrides from the command line.

First the tables of a recipe, each key with its default and its meaning, then how a recipe is read and written.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator, with_config
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bert_tables.dialect import Dialect
from model.config import BertConfig
from training.errors import RecipeError

RECIPES = Path(__file__).parent / "recipes"

SINGLE_LABEL: Final = "single_label_classification"
MULTI_LABEL: Final = "multi_label_classification"
REGRESSION: Final = "regression"
"""Problem types, in the words of `transformers`."""

CONTAINING: Final = "containing"
"""Value of `SourceConfig.group` for phrases."""

Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[
    str, BeforeValidator(lambda name: unicodedata.normalize("NFC", name) if isinstance(name, str) else name)
]
"""A label, or a value of its column, with composed characters."""


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number")
    return value


Whole = Annotated[int, BeforeValidator(_no_boolean)]
"""An integer; pydantic takes `true` for 1."""
Positive = Annotated[Whole, Field(gt=0)]
Seed = Annotated[Whole, Field(ge=0, lt=2**32)]
Columns = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, (str, int)) else value)
]

RESOLVED = "recipe.json"
"""File beside each run with its recipe, overrides and defaults included."""
MIN_POSITIONS = 512
"""Positions of every new network: callers send whole reviews, also longer than the texts it was trained on."""
NUM_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP] of a pair."""
BUCKET_TOKENS = 128
"""Step of the number of tokens in a batch: oneDNN keeps one kernel per shape (model.packing.round_up_to_bucket)."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


with_config(ConfigDict(extra="forbid"))(Dialect)  # pydantic ignores unknown keys of a plain dataclass


class SourceConfig(_Strict):
    """Where documents come from."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # the number of a column

    name: str = ""
    """Name in reports and folders; else that of the file or data set."""
    path: str | None = None
    """File, directory or glob, relative to `data`. In a directory, a README or LICENSE beside other texts is not
    read."""
    hub: str | None = None
    """Data set of the Hugging Face hub, `owner/name` or `owner/name:config`; with `path` too, only if no file is
    there."""
    split: str = "train"
    """Split of the hub data set."""
    format: Literal["auto", "jsonl", "csv", "tsv", "parquet", "text", "document", "fasttext"] = "auto"
    """`auto`: by the suffix and first bytes of each file; in a directory, only files of known suffixes. A text per row:
    `csv` (.csv), `tsv` (.tsv, .tab), `jsonl` (.jsonl, .ndjson, .json), `parquet` (.parquet, .pq). `text` (.txt, .text,
    .md, .markdown): without a label, a blank line ends a document. `document`: a file is a document. `fasttext`: one
    text per line, after its label (`__label__2 Great film`)."""
    boundary: re.Pattern[str] | None = None
    """Regular expression of lines between documents without a label, such as `"<.endoftext.>"` or `"= [^=].* ="`, a
    title of WikiText. Then no blank line and no row ends a document."""
    table: Dialect = Dialect()
    """How CSV and TSV files are written, if not detected: `first_line` (that of the header), `header` (true, false, or
    the columns' names), `delimiter`, `quote`, `escape`; `encoding` of any text that is not UTF-8."""
    text: Columns = ("text",)
    """Columns with the text, such as title and body: names, or numbers from 1."""
    read: Literal["text", "pair", "both"] | None = None
    """How a classifier reads several text columns: as one `text`, a `pair` (the default for two), or `both`, one or the
    other in each pass. In pretraining, columns are paragraphs."""
    label: str | tuple[str, ...] | None = None
    """Column with the label. `folder` is the name of a file's folder, and a folder `lang=de` makes a column `lang`;
    with the label `folder`, each file of plain text is one text. A list names columns of 1 and 0, each of which is a
    label, for `multi_label_classification`."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """What separates labels in a cell, such as `";"`, for `multi_label_classification`. A list, as in JSON, Parquet
    or a cell `["a", "b"]`, needs none; `[]` says that a text has none of the labels."""
    group: str | None = None
    """Column such as film or author: texts with the same value are all trained on or all held out. `containing` is for
    phrases as in SST-2: a text's group is the longest text that contains it."""
    escaped_newlines: bool = False
    """Read a backslash followed by `n` as a newline, as in the data of Zhang et al. 2015."""
    treebank: Literal["kept", "joined", "both"] = "kept"
    """Penn Treebank tokens, such as SST-2's `it is n't`: `kept` as they are, `joined` as people write (`it isn't`), or
    `both` as two texts where the words differ."""
    lines: Literal["paragraph", "wrapped", "sentence"] = "paragraph"
    """What a line is: a `paragraph`, a `sentence`, or a part of a paragraph `wrapped` to a width."""
    limit: Positive | None = None
    """Documents to read at most."""
    by: str | None = None
    """Column with the domain of a text: the report has the mean and the worst of the domains."""
    balance: Annotated[float, Field(ge=1)] | None = None
    """Keep at most this many times the texts of the rarest label, per value of `by`."""
    note: str = ""
    """Licence and citation, for the model card."""

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The column with the label, or the columns of labels."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @model_validator(mode="after")
    def _some_place(self) -> SourceConfig:
        if self.path is None and self.hub is None:
            raise ValueError("a source needs a path or a data set of the hub")
        if self.read in ("pair", "both") and len(self.text) != 2:
            raise ValueError(f"read = {self.read!r} needs two text columns, not {len(self.text)}")
        return self


def source_name(source: SourceConfig) -> str:
    """How reports and folders call a source: its name, else that of its file or data set."""
    name = source.name or source.hub or Path(source.path or "").name.split(".")[0]
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "source"


class TokenizerConfig(_Strict):
    """The vocabulary to learn."""

    vocab_size: Positive = 8192
    """Entries of the vocabulary, special tokens included."""
    lowercase: bool = True
    """Lower-case the text and strip accents."""


class CorpusConfig(_Strict):
    """The text to pretrain on."""

    sources: tuple[SourceConfig, ...] = ()
    """Text to pretrain on."""
    heldout: tuple[SourceConfig, ...] = ()
    """Documents to evaluate on, never trained on. If absent, `heldout_fraction` of each source."""
    heldout_fraction: Share = 0.01
    """Share of documents to hold out, by a hash."""


class ModelConfig(_Strict):
    """Shape of the network. It has as many positions as the longest example of any stage, at least 512."""

    preset: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Published shape, layers × width: tiny 2×128, mini 4×256, small 4×512, medium 8×512, base 12×768, large
    24×1024."""
    hidden_size: Positive | None = None
    """Width, instead of the preset's: a multiple of 64 (one head each), or less than 128."""
    num_hidden_layers: Positive | None = None
    """Layers, instead of the preset's."""

    def bert(self, vocab_size: int, positions: int) -> BertConfig:
        """The model's configuration for a vocabulary and a number of positions."""
        changes: dict[str, Any] = {"vocab_size": vocab_size, "max_position_embeddings": positions}
        if self.num_hidden_layers:
            changes["num_hidden_layers"] = self.num_hidden_layers
        if self.hidden_size:
            heads = max(1, self.hidden_size // 64)
            changes |= {"hidden_size": self.hidden_size, "num_attention_heads": heads}
            changes["intermediate_size"] = 4 * self.hidden_size
        return BertConfig.preset(self.preset, **changes)

    @model_validator(mode="after")
    def _valid_shape(self) -> ModelConfig:
        if self.hidden_size and self.hidden_size % max(1, self.hidden_size // 64):
            raise ValueError(f"hidden_size is {self.hidden_size}: give a multiple of 64, or less than 128")
        self.bert(vocab_size=1, positions=3)  # raises ConfigError, a ValueError
        return self


class ExamplesConfig(_Strict):
    """How text becomes masked pairs of segments (Devlin et al. 2018, section 3.1 and appendix A.1)."""

    short_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a full example, special tokens included. Longer sentences are cut."""
    long_length: Positive = 512
    """Tokens of a full long example."""
    long_fraction: Share = 0.1
    """Share of the tokens in long examples, which train the positions beyond `short_length`."""
    mask_fraction: PositiveShare = 0.15
    """Share of tokens to predict, at the beginning of the run: 80% become `[MASK]`, 10% another token."""
    final_mask_fraction: PositiveShare | None = None
    """Share of tokens to predict at the end of the run, if different."""
    random_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.25
    """Share of pairs whose second segment is from another document. Half of all pairs are true; the remaining false
    ones are from the same document."""

    @model_validator(mode="after")
    def _valid_lengths(self) -> ExamplesConfig:
        if self.long_fraction and self.long_length < self.short_length:
            raise ValueError(f"long_length {self.long_length} is below short_length {self.short_length}")
        return self

    @property
    def long_probability(self) -> float:
        """Share of examples that are long, so that they hold `long_fraction` of the tokens."""
        long, short = self.long_fraction / self.long_length, (1 - self.long_fraction) / self.short_length
        return long / (long + short)

    @property
    def sentence_tokens(self) -> int:
        """Tokens above which a sentence is cut: a full example has no room for more, so the middle of a longer one
        would never be seen."""
        return self.short_length - NUM_SPECIAL_TOKENS

    @property
    def longest(self) -> int:
        """Tokens of the longest example."""
        return self.long_length if self.long_fraction else self.short_length


class PretrainConfig(_Strict):
    """Masked LM and next sentence."""

    start: Path | None = None
    """Checkpoint directory to start from. Its shape and vocabulary replace `[model]` and `[tokenizer]`. Use another
    `seed` than its run had: the same examples would come first again."""
    teacher: Path | None = None
    """Checkpoint directory of a larger network with the same vocabulary. The network also learns the attention
    relations of its last layer (MiniLMv2)."""
    tokens: Positive | None = None
    """Budget in tokens. If absent, 5,000,000, or as many as fit into `minutes`."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Budget in minutes, evaluations included. With `tokens` too, the smaller budget counts."""
    batch_tokens: Positive = 2048
    """Tokens per optimizer step over all processes: a multiple of `micro_batch_tokens`, or less."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-4
    """Peak learning rate."""
    warmup_fraction: Share = 0.06
    """Share of the budget in which the learning rate rises."""
    decay_fraction: Share = 0.3
    """Share of the budget, at its end, in which the learning rate falls linearly to 0."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of hidden states. Attention has none."""
    examples: ExamplesConfig = ExamplesConfig()

    @property
    def budget_tokens(self) -> int | None:
        """Budget in tokens; None if only `minutes` limit the run."""
        return self.tokens or (None if self.minutes else 5_000_000)


class SoftLabelsConfig(_Strict):
    """Soft labels from other classifiers (Hinton et al. 2015): `soft-labels` writes their probabilities, and
    fine-tuning learns from them."""

    teacher: Path | None = None
    """Checkpoint directory of a classifier with the same labels and vocabulary. If absent, `soft-labels` trains one for
    each of `folds`."""
    folds: Annotated[Whole, Field(ge=2)] = 3
    """Parts of the texts. Each is labelled by a teacher that has read only the others; texts without a label, by
    all."""
    sources: tuple[SourceConfig, ...] = ()
    """Texts without labels that the teachers label too."""
    weight: Share = 0.5
    """Weight of the teachers' probabilities beside the true label. With 0, no teachers are trained or used."""


class FinetuneConfig(_Strict):
    """The classifier."""

    train: tuple[SourceConfig, ...] = ()
    """Labelled sources to train on."""
    test: tuple[SourceConfig, ...] = ()
    """Labelled sources for the report, which `finetune` does not train on."""
    pretrained: Path | None = None
    """Checkpoint directory to start from: any BERT encoder, with heads or without, or a classifier, whose last layer
    is kept if it has the same labels. If absent, this run's network."""
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = SINGLE_LABEL
    """What the label column holds: one label, any number of labels (`[]` or columns of 0 for none), or a number."""
    labels: dict[Name, Name] = {"0": "NEGATIVE", "1": "POSITIVE"}
    """Label of the model for each value of the label column; several values may have one, and `""` leaves a value out:
    `{ 1 = "BAD", 2 = "BAD", 3 = "", 4 = "GOOD" }`. `1.0` matches the key `1`."""
    seeds: tuple[Seed, ...] = ()
    """Train once with each seed and keep the best on dev. If empty, the recipe's `seed`."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each source's texts or groups to hold out for the report if there is no `test`."""
    dev_fraction: Share | None = None
    """Share of each source's texts or groups to hold out, to choose the seed and the temperature. If absent, 0.05, but
    100 of a small source, and 0.2 of one with less than 500."""
    all_rows: bool = False
    """Train once more with the settings of the best seed, on dev and `test_fraction`, too, and export that classifier.
    The report is on the first one."""
    passes: Annotated[float, Field(gt=0)] | None = None
    """Passes over the texts. If absent, chosen by their tokens."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Budget in minutes for all seeds, the training of `all_rows` and the teachers of `[soft_labels]`, in equal
    parts."""
    max_length: Annotated[Whole, Field(ge=8)] = 256
    """Tokens of a text or pair in training: the beginning and the end are kept."""
    batch_tokens: Positive | None = None
    """Tokens per optimizer step, as in `pretrain.batch_tokens`. If absent, chosen by the texts' tokens."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Peak learning rate. If absent, chosen by `batch_tokens`."""
    embedding_factor: Annotated[float, Field(gt=0)] | None = None
    """Learning rate of the embeddings, in multiples of the others'. If absent, 10, but 1 with a `learning_rate` or if
    `pretrained` is a classifier."""
    bag_weight: Share | None = None
    """Weight of a bag of words' probabilities beside the true label. Copies of texts that lack some words have only
    these probabilities. If absent, 0.5 for up to 20,000 texts; 0 for more, for numbers, or if `pretrained` is a
    classifier of the same labels. Not used with `[soft_labels]`."""
    augment_fraction: Share = 0.1
    """Share of texts changed to what users write: typographic marks, contractions, capitals."""

    @property
    def label_names(self) -> list[str]:
        """The model's labels in the order of the logits. A regression has the name of its column."""
        if self.problem_type == REGRESSION:
            return [next((name for source in (*self.train, *self.test) for name in source.label_columns), "number")]
        return [name for name in dict.fromkeys(self.labels.values()) if name]

    @property
    def tested(self) -> tuple[SourceConfig, ...]:
        """Sources with texts for the report only: those of `test`, or of `train` if a part of them is held out."""
        return self.test or (self.train if self.test_fraction else ())

    def dev_share(self, groups: int) -> float:
        """Share of the groups of a source that is dev."""
        return max(0.05, min(0.2, 100 / groups)) if self.dev_fraction is None else self.dev_fraction

    def in_order_of(self, names: Sequence[str]) -> FinetuneConfig:
        """These settings with the labels in the order of a classifier; unchanged if the classifier has others."""
        if list(names) == self.label_names or sorted(names) != sorted(self.label_names):
            return self
        place = {name: number for number, name in enumerate(["", *names])}
        labels = dict(sorted(self.labels.items(), key=lambda item: place[item[1]]))
        return self.model_copy(update={"labels": labels})

    @model_validator(mode="after")
    def _valid_labels_and_seeds(self) -> FinetuneConfig:
        if self.problem_type == SINGLE_LABEL and len(self.label_names) < 2:
            raise ValueError("labels must name at least two labels")
        if not self.label_names:
            raise ValueError("labels must name at least one label")
        BertConfig(id2label=dict(enumerate(self.label_names)))  # raises ConfigError
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must differ: each has its own folder")
        if len(self.seeds) > 1 and self.dev_fraction == 0:
            raise ValueError("to choose among several seeds, dev_fraction must be above 0")
        if (self.dev_fraction or 0) + self.test_fraction >= 1:
            raise ValueError("dev_fraction and test_fraction leave no text to train on")
        return self

    @model_validator(mode="after")
    def _valid_problem_type(self) -> FinetuneConfig:
        for source in (*self.train, *self.test):
            if (source.separator or isinstance(source.label, tuple)) and self.problem_type != MULTI_LABEL:
                raise ValueError(f"a separator or several columns of labels need problem_type = {MULTI_LABEL!r}")
            if source.balance and self.problem_type != SINGLE_LABEL:
                raise ValueError(f"balance needs one label per text, and problem_type is {self.problem_type!r}")
        return self


class ExportConfig(_Strict):
    """Where the served directories are written."""

    folder: Path | None = None
    """Folder for `pretrained/` and `classifier/`, instead of `export` in the run's folder."""
    classifier: Path | None = None
    """Directory for the classifier, instead of `classifier` in `export.folder`."""


class Recipe(_Strict):
    """Everything a run depends on besides the data and the machine."""

    name: Annotated[str, Field(pattern=r"^[^./\\\p{Cc}][^/\\\p{Cc}]*$")]
    """Name of the run and its folder."""
    description: str = ""
    """First paragraph of the model cards."""
    limits: tuple[str, ...] = ()
    """Weaknesses with examples, for the model cards."""
    loaded: str = ""
    """The file, or the name of a recipe that ships; set by `load_recipe`."""
    overrides: tuple[str, ...] = ()
    """What the command line changed; set by `load_recipe`."""
    seed: Seed = 1
    """Seed of weights, masks, pairs, order and dropout."""
    data: Path = Path()
    """Folder that relative source paths start from."""
    run: Path = Path("runs")
    """Folder of all runs."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto` takes a GPU if there is one."""
    micro_batch_tokens: Positive = 2048
    """Tokens per forward pass, a multiple of 128. Lower it if memory runs out, raise it on a GPU."""
    cuda_graphs: bool = False
    """Launch the kernels of a pass together, for small networks on a GPU. Not tried on a GPU yet."""
    half_residual: bool = False
    """Keep hidden states between layers in 16 bits. Not tried on a GPU yet."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 5.0
    """Minutes between checkpoints."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    corpus: CorpusConfig = CorpusConfig()
    model: ModelConfig = ModelConfig()
    pretrain: PretrainConfig = PretrainConfig()
    soft_labels: SoftLabelsConfig | None = None
    """If absent, fine-tuning learns from labels only."""
    finetune: FinetuneConfig = FinetuneConfig()
    export: ExportConfig = ExportConfig()

    @property
    def folder(self) -> Path:
        """Where this run writes."""
        return self.run / self.name

    def exported(self, name: str) -> Path:
        """Where `export` writes the model `pretrained` or `classifier`."""
        if name == "classifier" and self.export.classifier:
            return self.export.classifier
        return (self.export.folder or self.folder / "export") / name

    @property
    def positions(self) -> int:
        """Positions of a network that this recipe makes."""
        return max(MIN_POSITIONS, self.pretrain.examples.longest, self.finetune.max_length)

    @property
    def soft_label_weight(self) -> float:
        """Weight of soft labels; 0 if fine-tuning learns from labels only."""
        return self.soft_labels.weight if self.soft_labels else 0.0

    @property
    def left_out_of_corpus(self) -> FinetuneConfig:
        """The classifier whose test and dev texts are not pretrained on. With `pretrain.start`, a network is often
        adapted to the classifier's texts; one from random weights serves any classifier."""
        return self.finetune if self.pretrain.start else FinetuneConfig()

    def micro_tokens(self, stage: PretrainConfig | FinetuneConfig) -> int:
        """Tokens per forward pass of a process in a stage."""
        return min(self.micro_batch_tokens, stage.batch_tokens or self.micro_batch_tokens)

    @model_validator(mode="after")
    def _valid_batches(self) -> Recipe:
        stages = (
            ("pretrain", self.pretrain.examples.longest, self.pretrain),
            ("finetune", self.finetune.max_length, self.finetune),
        )
        for stage, longest, config in stages:
            if stage == "pretrain" and not self.corpus.sources:
                continue
            micro = self.micro_tokens(config)
            batch = config.batch_tokens or micro
            key = "micro_batch_tokens" if micro == self.micro_batch_tokens else f"{stage}.batch_tokens"
            if micro % BUCKET_TOKENS:
                raise ValueError(f"{key} must be a multiple of {BUCKET_TOKENS}, not {micro}")
            if longest > micro:
                raise ValueError(f"{stage}: an example has up to {longest} tokens, more than {key} ({micro})")
            if batch % micro:
                raise ValueError(f"{stage}.batch_tokens ({batch}) must be a multiple of micro_batch_tokens ({micro})")
        return self

    @model_validator(mode="after")
    def _valid_soft_labels(self) -> Recipe:
        kind = self.finetune.problem_type
        if self.soft_labels and kind != SINGLE_LABEL:
            raise ValueError(f"soft_labels needs one label per text, and problem_type is {kind!r}")
        if self.finetune.bag_weight and kind == REGRESSION:
            raise ValueError(f"finetune.bag_weight needs labels, and problem_type is {kind!r}")
        if self.soft_labels and self.finetune.all_rows:
            raise ValueError("finetune.all_rows excludes soft_labels, which cover only the texts to train on")
        return self

    @model_validator(mode="after")
    def _valid_names(self) -> Recipe:
        lists = {
            "corpus.sources": self.corpus.sources,
            "corpus.heldout": self.corpus.heldout,
            "finetune.train": self.finetune.train + (self.soft_labels.sources if self.soft_labels else ()),
            "finetune.test": self.finetune.test,
        }
        for key, sources in lists.items():
            for name, count in Counter(map(source_name, sources)).items():
                if count > 1:
                    raise ValueError(f"{key}: {count} sources are called {name!r}; give each its own name")
        return self


# --- reading and writing -------------------------------------------------------------------------------------------

_REMOVED_KEYS = {
    "pretrain.average_fraction": "no such key any more: delete it, because the learning rate falls to 0 at the end",
    "distill": "the table is called soft_labels",
    "finetune.epochs": "the key is called finetune.passes",
    "tensorboard": "no such key any more: delete it, because log.jsonl has all figures",
    "pretrain.before_decay": "no such key any more: pretrain.start trains a network on (docs/training.md)",
}
"""Tables and keys of earlier versions, and what to use instead."""


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by file name, or by the name of one that ships, and apply `key.sub=value` overrides. What it does
    not say is taken from the recipe that its key `from` names.

    Raises:
        RecipeError: names the file and the key.
    """
    values, file = _read(name, Path())
    for override in overrides:
        apply_override(values, override)
    return parse_recipe(values | {"loaded": name, "overrides": tuple(overrides)}, str(file))


def _read(name: str, folder: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Path]:
    """The tables of a recipe, and its file.

    Args:
        folder: Where a relative path starts.
        above: Files of the recipes whose `from` led to this one, to find a cycle.
    """
    file = folder / name if name.endswith((".toml", ".json")) else RECIPES / f"{name}.toml"
    if not file.is_file():
        known = sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.toml"))
        now = next((each for each in known if each.endswith(f"/{name}")), None)
        hint = f"it is called {now} now" if now else f"the shipped ones are {', '.join(known)}"
        if Path(f"{name}.toml").is_file():
            hint = f"did you mean {name}.toml?"
        raise RecipeError(f"{file if name.endswith('.toml') else name}: no such recipe; {hint}")
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors begin it with a mark
        values = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise RecipeError(f"{file}: {error}") from error
    base = values.pop("from", None)
    if base is None:
        return values, file
    if not isinstance(base, str):
        raise RecipeError(f"{file}: from: give the name of a recipe, or its file")
    if file in above:
        raise RecipeError(f"{file}: from: the recipe takes keys from itself")
    return _merged(_read(base, file.parent, (*above, file))[0], values), file


def _merged(base: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of `base`, with each value that `values` has in place of its own."""
    made = dict(base)
    for key, value in values.items():
        old = made.get(key)
        made[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return made


def parse_recipe(values: Mapping[str, Any], place: str) -> Recipe:
    """A recipe from its tables.

    Args:
        place: Where they stand, for messages.

    Raises:
        RecipeError: names the place and the key.
    """
    try:
        return Recipe(**values)
    except ValidationError as error:
        lines = (": ".join(filter(None, (".".join(map(str, e["loc"])), _message(e)))) for e in error.errors())
        raise RecipeError(f"{place}: " + "; ".join(lines)) from error


def recipe_keys(table: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key with its dotted name; those of a source begin with `source.`, wherever it is."""
    for name, field in table.model_fields.items():
        if name in ("loaded", "overrides"):  # not for a recipe to set
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, _Strict)), None)
        if inner is not field.annotation:  # a value, or a table that may be left out
            yield prefix + name, field
        if inner not in (None, SourceConfig):
            yield from recipe_keys(inner, f"{prefix}{name}.")
    if table is Recipe:
        yield from recipe_keys(SourceConfig, "source.")


def _message(error: ErrorDetails) -> str:
    """What is wrong with a key; for an unknown one also the key that may be meant."""
    if error["type"] == "unexpected_keyword_argument":  # in `table`
        return f"no such key; the keys are {', '.join(Dialect.__dataclass_fields__)}"
    *tables, name = error["loc"] or ("",)
    if error["type"] == "tuple_type":
        head = f"[[{'.'.join(map(str, error['loc']))}]]"
        is_sources = name in ("sources", "heldout", "train", "test")
        return f"give a list: begin each of its tables with {head}" if is_sources else "give a list: [ ... ]"
    if error["type"] == "model_type":
        example = '{ path = "texts.jsonl" }' if isinstance(name, int) else f"[{'.'.join(map(str, error['loc']))}]"
        return f"give a table, such as {example}"
    if error["type"] == "string_type" and tables[-1:] == ["labels"]:
        return 'give a string; a value with a dot has quotation marks: "1.5" = ...'
    if error["type"] != "extra_forbidden":
        return error["msg"].removeprefix("Value error, ")
    prefix = "source" if any(isinstance(table, int) for table in tables) else ".".join(map(str, tables))
    full = f"{prefix}.{name}".lstrip(".")
    if full in _REMOVED_KEYS:
        return _REMOVED_KEYS[full]
    if prefix == "source" and name in Dialect.__dataclass_fields__:
        return f"no such key; did you mean table = {{ {name} = ... }}?"
    keys = [key for key, _ in recipe_keys()]
    keys = list(dict.fromkeys([*keys, *(key.rpartition(".")[0] for key in keys)]))  # with the tables
    own = [key for key in keys if key.rpartition(".")[0] == prefix]
    guesses = difflib.get_close_matches(full, own, n=1, cutoff=0.9)
    guesses = guesses or [key for key in keys if key.startswith(f"{full}_")]
    guesses = guesses or [key for key in keys if key.rpartition(".")[2] == name]  # of another table
    guesses = guesses or difflib.get_close_matches(full, keys, n=1)
    return "no such key" + (f"; did you mean {' or '.join(guesses)}?" if guesses else "")


def write_resolved(recipe: Recipe, folder: Path) -> None:
    """Write the recipe with all its overrides and defaults as `recipe.json` beside a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESOLVED).write_text(recipe.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def read_resolved(folder: Path) -> Recipe | None:
    """The recipe that a run was made with, without keys that no longer exist; None if there is none."""
    try:
        return Recipe.model_validate_json((folder / RESOLVED).read_text(encoding="utf-8"), extra="ignore")
    except (OSError, ValidationError):
        return None


def apply_override(values: dict[str, Any], override: str) -> None:
    """`pretrain.minutes=5` into nested tables; the value is TOML, else a string; keys of strings and paths always
    get a string: `name=2024`."""
    key, separator, text = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r} is not of the form key=value")
    *tables, leaf = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise RecipeError(f"override {override!r}: {table} is not a table")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    field = dict(recipe_keys()).get(key)
    if field is not None and field.annotation in (str, Path, Path | None) and not isinstance(value, str):
        value = text
    values[leaf] = value
