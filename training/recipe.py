"""What a run does: one TOML recipe, strict and typed, with overrides from the command line."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bert_client.dialect import Dialect
from model.config import BertConfig
from model.errors import ConfigError
from training.errors import RecipeError

RECIPES = Path(__file__).parent / "recipes"

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _check_dialect_keys(value: Any) -> Any:
    """Refuse unknown keys, which pydantic passes over for a plain dataclass."""
    known = Dialect.__dataclass_fields__
    if isinstance(value, dict) and (unknown := sorted(value.keys() - known.keys())):
        raise ValueError(f"there is no key {', '.join(unknown)}; the keys are {', '.join(known)}")
    return value


class SourceConfig(_Strict):
    """Where documents come from."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # the number of a column

    name: str = ""
    """How reports call it; the file's name if absent."""
    path: str | None = None
    """A file, a directory or a glob, relative to the recipe's `data`."""
    hub: str | None = None
    """A data set of the Hugging Face hub, `owner/name` or `owner/name:config`. With a path as well, the hub is
    asked only if no file is there."""
    split: str = "train"
    """Split of the hub data set."""
    format: Literal["auto", "jsonl", "csv", "tsv", "parquet", "text", "wikitext", "fasttext"] = "auto"
    """`auto` goes by the suffix and the first bytes of a file, and in a directory takes the files whose suffix
    it knows; any other is the format of all files there. Hidden files of a directory are not read. `wikitext`:
    lines like ` = Title = ` begin a document, in files of text or in the first text column of files with
    columns. `fasttext`: a text per line, after its label (`__label__2 Great film`)."""
    table: Annotated[Dialect, BeforeValidator(_check_dialect_keys)] = Dialect()
    """How CSV and TSV files are written, where that is not detected: `header` (true, false, or the columns'
    names), `delimiter`, `quote`, `escape`; and `encoding`, of any text."""
    text: tuple[str, ...] = ("text",)
    """Columns that hold the text, by name or number (from 1). As documents they are joined as paragraphs."""
    read: Literal["text", "pair", "both"] | None = None
    """How fine-tuning reads several text columns, such as title and body: as one text, as a pair of texts, or
    both. If absent, two are a pair and more are a text."""
    label: str | None = None
    """Column that holds the label, for fine-tuning; or `folder`, for files of text: each file is one text, and
    its folder's name is the label. Labelled texts keep a `<br />`, since callers send it too; elsewhere it is
    a newline."""
    group: str | None = None
    """Column whose equal values must not be split between train and dev, or held-out, text (film, author)."""
    escaped_newlines: bool = False
    """A `\\n` that is spelled out in a column is a newline, as in the data sets of Zhang et al. 2015 (Yahoo,
    Amazon, Yelp). Callers' texts keep theirs."""
    treebank: Literal["kept", "joined", "both"] = "kept"
    """Texts that stand in the tokens of the Penn Treebank, as SST-2's do (`it is n't`): `joined` reads them as
    people write them (`it isn't`), `both` in either way, where that makes other words."""
    lines: Literal["paragraph", "wrapped", "sentence"] = "paragraph"
    """Plain text: what a line is. In `wrapped` text, sentences run on over the ends of lines. A blank line
    always ends a document."""
    limit: Positive | None = None
    """Take only so many documents."""
    note: str = ""
    """What the model card says of it: licence, citation."""

    @model_validator(mode="after")
    def _some_place(self) -> SourceConfig:
        if self.path is None and self.hub is None:
            raise ValueError("a source needs a path or a data set of the hub")
        return self

    @model_validator(mode="after")
    def _pairs_have_two_columns(self) -> SourceConfig:
        if self.read in ("pair", "both") and len(self.text) != 2:
            raise ValueError(f'read = "{self.read}" needs two text columns, not {len(self.text)}')
        return self

    @property
    def reading(self) -> Literal["text", "pair", "both"]:
        """`read`, or what it is if absent."""
        return self.read or ("pair" if len(self.text) == 2 else "text")

    @property
    def is_labelled(self) -> bool:
        """Whether its documents have labels."""
        return self.label is not None or self.format == "fasttext"


def source_name(source: SourceConfig) -> str:
    """How reports and folders call a source: its name, else that of its file or data set."""
    name = source.name or source.hub or Path(source.path or "").name.split(".")[0]
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "source"


class TokenizerConfig(_Strict):
    """The vocabulary to learn."""

    vocab_size: Positive = 8192
    """Entries of the vocabulary, special tokens included."""
    lowercase: bool = True
    """Lower-case, and take accents off."""
    min_frequency: Positive = 2
    """Words that are rarer teach the vocabulary nothing."""
    sample_megabytes: Positive = 100
    """Learn from about so much text, drawn evenly from all sources."""


class CorpusConfig(_Strict):
    """The text to pretrain on."""

    sources: tuple[SourceConfig, ...] = ()
    """Where the text comes from."""
    heldout: tuple[SourceConfig, ...] = ()
    """Documents never trained on. Without any, `heldout_fraction` of each source is put aside."""
    heldout_fraction: Share = 0.01
    """Decided by a hash of the document, so the same documents are held out in every run; at least one of a
    source, unless it is a single text."""
    workers: Positive = 2
    """Processes that split and tokenize."""


class ModelConfig(_Strict):
    """Shape of the network; see `model.config.BertConfig`."""

    preset: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Shape; single figures of it can be changed by the keys below."""
    hidden_size: Positive | None = None
    """Width of the ribbon of hidden states."""
    num_hidden_layers: Positive | None = None
    """Layers."""
    num_attention_heads: Positive | None = None
    """Heads per layer; they divide `hidden_size`."""
    intermediate_size: Positive | None = None
    """Width of the feed-forward layers."""
    max_position_embeddings: Positive = 512
    """The longest sequence, in tokens."""

    def bert(self, vocab_size: int) -> BertConfig:
        """The model's own configuration over a vocabulary of this size."""
        changes = self.model_dump(exclude={"preset"}, exclude_none=True)
        return BertConfig.preset(self.preset, vocab_size=vocab_size, **changes)


class ExamplesConfig(_Strict):
    """How text becomes masked sentence pairs (Devlin et al. 2018, section 3.1 and appendix A.1)."""

    sequence_length: Positive = 128
    """Tokens of a full example, special tokens included."""
    mask_fraction: Share = 0.15
    """Share of tokens to predict: 80% of these become `[MASK]`, 10% another token, 10% stay."""
    whole_word: bool = False
    """Mask all pieces of a word together."""
    short_fraction: Share = 0.1
    """Share of examples filled only to a random shorter length."""
    sentence_pair_fraction: Share = 0.1
    """Share of examples that pair one single sentence with one other, as callers send them."""
    next_fraction: Share = 0.5
    """Share of pairs whose second segment truly follows the first."""
    random_fraction: Share = 0.25
    """Share of pairs whose second segment comes from another document. The rest is negative too, from the
    same document: swapped, or not adjacent."""

    @model_validator(mode="after")
    def _shares(self) -> ExamplesConfig:
        if self.next_fraction + self.random_fraction > 1 + 1e-9:
            raise ValueError("next_fraction + random_fraction is more than 1")
        if self.sequence_length < 8:
            raise ValueError("sequence_length below 8 leaves no room for two segments")
        return self


class PretrainConfig(_Strict):
    """The long run."""

    start: Path | None = None
    """Checkpoint directory to go on from, with its shape and vocabulary, instead of random weights; `[model]`
    and `[tokenizer]` are ignored then. Take another `seed` than the run that made it had: with the same, the
    same text comes first again, masked in the same places."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Budget in minutes of training (evaluation not counted); the rate reaches 0 when it is spent."""
    tokens: Positive | None = None
    """Budget in tokens, instead of minutes."""
    batch: Positive = 32
    """Examples per optimizer step, over all processes."""
    micro_batch: Positive | None = None
    """Examples of `sequence_length` per forward pass and process. If absent: on a CPU all of a step's, on a
    GPU as many of them as fit."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping it: a third more time, for much less
    memory. The layers are not compiled then."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Processes that make examples ahead. If absent: none on a CPU, which has better to do; 4 for a GPU."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` orthogonalises the steps of the layers' matrices (Jordan et al. 2024): fewer steps, each a little
    dearer. Embeddings, heads, biases and norms have AdamW in either case."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """At its peak."""
    warmup_fraction: Share = 0.06
    """Share of the budget in which the rate rises."""
    decay_fraction: Share = 1.0
    """Share of the budget at the end in which the rate falls to 0 linearly; 1 falls from the peak on. Before
    that a run can be stopped and continued with a larger budget."""
    average_fraction: Share = 0.0
    """Share of the budget at the end of which the mean of the weights is kept: held-out text is read with the
    mean from there on, and the run ends with it (Izmailov et al. 2018). It begins anew where examples get
    long."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Of matrices; biases and norms have none."""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Of AdamW."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Of AdamW."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """The gradient's norm is cut to this."""
    dropout: Dropout = 0.0
    """Of hidden states and of attention."""
    next_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the next-sentence loss beside the masked LM's; 1 as in BERT."""
    zero_residual: bool = True
    """Start every residual branch at 0: the network begins as its embeddings and leaves the plateau sooner."""
    neighbour_attention: bool = True
    """Start the first layer's heads looking at neighbouring words; see `training.pretrain.init`."""
    long_fraction: Share = 0.0
    """Share of the budget at the end that is spent on examples of `long_length` tokens."""
    long_length: Positive = 512
    """Tokens of a full example in that last part."""
    examples: ExamplesConfig = ExamplesConfig()
    evaluate_minutes: Annotated[float, Field(gt=0)] = 10.0
    """How often the held-out text is looked at."""
    evaluate_examples: Positive = 512
    """Held-out examples per source for the evaluations on the way."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 5.0
    """A kill loses at most so much training."""
    log_steps: Positive = 50
    """Steps that a line of the log is the mean over."""
    compile: bool | Literal["auto"] = "auto"
    """`torch.compile` of the layers. `auto` tries it on a GPU for some steps, and keeps it where they get
    faster."""

    @model_validator(mode="after")
    def _one_budget(self) -> PretrainConfig:
        if (self.minutes is None) == (self.tokens is None):
            raise ValueError("pretrain needs exactly one budget: minutes or tokens")
        return self


class AdaptConfig(_Strict):
    """More pretraining on the task's own texts before fine-tuning (Gururangan et al. 2020); what is not said
    here is as in `[pretrain]`."""

    minutes: Annotated[float, Field(gt=0)] | None = None
    """Budget in minutes of training."""
    tokens: Positive | None = None
    """Budget in tokens, instead of minutes."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """At its peak."""

    @model_validator(mode="after")
    def _one_budget(self) -> AdaptConfig:
        if (self.minutes is None) == (self.tokens is None):
            raise ValueError("adapt needs exactly one budget: minutes or tokens")
        return self


class FinetuneConfig(_Strict):
    """The classifier."""

    train: tuple[SourceConfig, ...] = ()
    """Labelled sources to train on."""
    test: tuple[SourceConfig, ...] = ()
    """Labelled sources for the report. Fine-tuning reads them, too: their texts are left out of `train`."""
    pretrained: Path | None = None
    """Checkpoint directory to start from: pretrained, or a classifier of the same labels to go on with. If
    absent, what this run has pretrained. With `[adapt]`, what adapting starts from."""
    labels: dict[str, str] = {"0": "NEGATIVE", "1": "POSITIVE"}
    """Value in the label column -> label of the model. Several values may have one label, and `""` leaves a
    value out: `{ 1 = "BAD", 2 = "BAD", 3 = "", 4 = "GOOD", 5 = "GOOD" }`. Logits are in the order in which
    labels first appear."""
    seeds: tuple[Seed, ...] = ()
    """Train once with each of them, and keep the best on dev. If empty, once with the recipe's `seed`."""
    dev_fraction: Share = 0.05
    """Share of each source, of its groups where it has any, that is not trained on: it decides which weights
    are kept, and how sure they are. At least one text or group of a source, unless it has no other."""
    evaluate_steps: Positive = 500
    """Look at dev at least so often, and at the end of each epoch; the best weights so far are kept."""
    evaluate_texts: Positive = 2000
    """Texts per source for these looks, drawn evenly from its dev part."""
    patience: Positive | None = None
    """Stop after so many looks without a better one. If absent, train to the end: the rate falls to 0, and the
    last steps are often the best."""
    max_length: Positive = 256
    """Tokens of a text, or of both texts of a pair, that are trained on. Dev and test texts are read as they
    are served, up to as many tokens as the network has positions."""
    truncation: Literal["head", "head_tail"] = "head_tail"
    """What is kept of a long text: its beginning, or its beginning and its end."""
    typographic_fraction: Share = 0.1
    """Share of the texts that are trained on with the marks that phones put for straight ones (`isn’t “fine”`):
    data sets hardly have them, and callers send them."""
    masked_fraction: Share = 0.0
    """In training, a share of a text's tokens between none and this is `[MASK]`, others each time (after the
    word dropout of Iyyer et al. 2015): no text can be learned by heart. Texts of up to 32 tokens are left as
    they are, in which one word can be all."""
    repeat: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Name of a source of `train` -> how often an epoch has its texts, e.g. `{ opinions = 10 }`; 0: they judge
    in dev, and are not trained on. Bags of words read them once."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """See `pretrain.optimizer`."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-4
    """At its peak."""
    epochs: Annotated[float, Field(gt=0)] = 2.0
    """Passes over the texts."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop there at the latest; the rate is planned so that it reaches 0 by then."""
    batch: Positive = 32
    """Texts per optimizer step, over all processes."""
    warmup_fraction: Share = 0.1
    """Share of the budget in which the rate rises; then it falls to 0 linearly."""
    average_fraction: Share = 0.0
    """Share of the budget at the end of which the mean of the weights is kept: dev is read with the mean from
    there on."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Of matrices; biases and norms have none."""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Of AdamW."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Of AdamW."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """The gradient's norm is cut to this."""
    micro_batch: Positive | None = None
    """Texts per forward pass of a process; fewer take less memory. If absent, its whole share of `batch`."""
    dropout: Dropout = 0.1
    """Of hidden states and of attention."""
    attention_dropout: Dropout | None = None
    """Of attention alone. 0 lets a GPU use variable-length attention, which has no dropout."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 5.0
    """A kill loses at most so much training."""
    log_steps: Positive = 50
    """Steps that a line of the log is the mean over."""
    baseline_texts: Annotated[int, Field(ge=0)] = 200_000
    """Training texts, drawn evenly, for the bags of words in the report; 0 leaves them out."""
    from_scratch_baseline: bool = False
    """Train the same network from random weights too, on the same texts, for the report: it shows what
    pretraining was worth."""

    @model_validator(mode="after")
    def _labels_differ(self) -> FinetuneConfig:
        if len(self.label_names) < 2:
            raise ValueError("labels must have two or more different names")
        return self

    @property
    def label_names(self) -> list[str]:
        """The labels of the model, in the order of the logits."""
        return list(dict.fromkeys(filter(None, self.labels.values())))

    @model_validator(mode="after")
    def _repeated_sources_exist(self) -> FinetuneConfig:
        names = {source_name(source) for source in self.train}
        if unknown := self.repeat.keys() - names:
            raise ValueError(
                f"repeat: no source of train is called {', '.join(sorted(unknown))}; they are "
                f"{', '.join(sorted(names))}"
            )
        return self

    @model_validator(mode="after")
    def _seeds_differ(self) -> FinetuneConfig:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must differ: each has a run and a folder of its own")
        return self


class ExportConfig(_Strict):
    """Where the trained directories go."""

    pretrained: Path | None = None
    """Directory for the pretrained model; `export/pretrained` in the run's folder if absent."""
    sentiment: Path | None = None
    """Directory for the classifier; `export/sentiment` in the run's folder if absent."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float16"
    """Precision of the exported weights."""


class Recipe(_Strict):
    """Everything a run depends on besides the data's bytes and the machine."""

    name: Annotated[str, Field(min_length=1)]
    """Of the run, and of its folder."""
    description: str = ""
    """For the model card."""
    weaknesses: tuple[str, ...] = ()
    """What the model card warns of."""
    loaded: str = ""
    """The file, or the name of a recipe that ships; set by `load_recipe`."""
    overrides: tuple[str, ...] = ()
    """What the command line changed; set by `load_recipe`."""
    seed: Seed = 1
    """Of weights, masks, pairs and order."""
    data: Path = Path()
    """Folder that relative source paths start from."""
    run: Path = Path("runs")
    """Folder for everything the run writes; it gets a sub-folder with the recipe's name."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto` takes a GPU where there is one."""
    threads: Positive | None = None
    """CPU threads; if absent, as many as the affinity mask and a container's quota leave."""
    tensorboard: bool = False
    """Write event files for TensorBoard beside the logs."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    corpus: CorpusConfig = CorpusConfig()
    model: ModelConfig = ModelConfig()
    pretrain: PretrainConfig = PretrainConfig(minutes=10)
    adapt: AdaptConfig | None = None
    """Leave it out, and fine-tuning starts from what was pretrained."""
    finetune: FinetuneConfig = FinetuneConfig()
    export: ExportConfig = ExportConfig()

    @property
    def folder(self) -> Path:
        """Where this run writes."""
        return self.run / self.name

    @property
    def hub_cache(self) -> Path:
        """Where this run keeps a copy of the rows that the hub has streamed."""
        return self.folder / "hub"

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        positions = self.model.max_position_embeddings
        lengths = {
            "pretrain.examples.sequence_length": self.pretrain.examples.sequence_length,
            "pretrain.long_length": self.pretrain.long_length if self.pretrain.long_fraction else 0,
            "finetune.max_length": 0 if self.finetune.pretrained else self.finetune.max_length,
        }
        for key, length in lengths.items():
            if length > positions and self.pretrain.start is None:  # else it is compared with what that has
                raise ValueError(f"{key} is {length}, but model.max_position_embeddings is {positions}")
        lists = {
            "corpus.sources": self.corpus.sources,
            "corpus.heldout": self.corpus.heldout,
            "finetune.train": self.finetune.train,
            "finetune.test": self.finetune.test,
        }
        for key, sources in lists.items():
            for name, count in Counter(map(source_name, sources)).items():
                if count > 1:
                    raise ValueError(f"{key}: {count} are called {name!r}; give each a name of its own")
        try:
            self.model.bert(self.tokenizer.vocab_size)
        except ConfigError as error:
            raise ValueError(f"model: {error}") from error
        return self


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by file name, or by the name of one that ships, and apply `key.sub=value` overrides.

    Raises:
        RecipeError: names the file and the key.
    """
    file = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in RECIPES.glob("*.toml")))
        raise RecipeError(f"{file}: no such recipe; the shipped ones are {known}")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))  # some editors begin it with a mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: {error}") from error
    for override in overrides:
        _apply(values, override)
    try:
        return Recipe(**(values | {"loaded": name, "overrides": tuple(overrides)}))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'recipe'}: {e['msg']}" for e in error.errors()]
        raise RecipeError(f"{file}: " + "; ".join(lines)) from error


def _apply(values: dict[str, Any], override: str) -> None:
    """`pretrain.minutes=5` into nested tables; the value is TOML, or else a plain string. What is to be a
    string, or a path, is one: `name=2024`."""
    key, separator, text = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r} is not of the form key=value")
    *tables, leaf = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise RecipeError(f"override {override!r}: {table} is no table")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    values[leaf] = text if _is_text(key) and not isinstance(value, str) else value


def _is_text(key: str) -> bool:
    """Whether a key of a recipe is a string or a path."""
    kinds: tuple[Any, ...] = (Recipe,)
    for name in key.split("."):
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not tables or name not in tables[0].model_fields:
            return False
        kind = tables[0].model_fields[name].annotation
        kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return str in kinds or Path in kinds
