"""`prepare`: sources to memory-mapped token ids.

    corpus/                   text to pretrain on          labelled/             text for the classifier
        train/                                                 train/
        heldout/<source>/                                      dev/<source>/

Each of these folders holds shards (training.corpus.shards) and a `manifest.json` with counts. A shard appears only when
it is complete, so the next run makes only the shards that an interrupted run is missing.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from model.tokenizer import Tokenizer
from model.tokenizer_dir import MAX_WORD
from training.corpus.engines.local import make_shards
from training.corpus.fingerprint import source_settings, split_settings, tokenizer_hash
from training.corpus.inputs import pretraining_inputs
from training.corpus.reader import FORMAT, PreparedText, count_tokens
from training.corpus.shards import Shard, ShardInput
from training.corpus.texts import read_texts
from training.errors import CorpusError
from training.recipe import FinetuneConfig, Recipe, SourceConfig
from training.runtime.files import reason, write_json
from training.sources.files import size

COUNTS = (
    *("documents", "sentences", "tokens", "unknown_sentences", "cut_sentences"),
    *("letters", "lost_letters", "long_word_letters"),
)

FEW_HELDOUT_DOCUMENTS = 20
"""Number of held-out documents below which figures are mostly chance."""

logger = logging.getLogger(__name__)

MadeShards = Iterator[tuple[ShardInput, Shard]]
Engine = Callable[[Iterator[ShardInput], Tokenizer, Path], MadeShards]
"""`make_shards` of a module in `training.corpus.engines`."""


def prepare(recipe: Recipe, tokenizer: Tokenizer, folder: Path, *, heldout_only: bool = False) -> None:
    """Write the token ids of the recipe's pretraining text into a folder, or continue to do so.

    Args:
        heldout_only: leave out the text to train on.

    Raises:
        SourceError: text cannot be read.
        CorpusError: the sources hold no text, or the disk is full.
    """
    sources = (*recipe.corpus.heldout, *recipe.corpus.sources)
    inputs = pretraining_inputs(recipe)
    if heldout_only:
        inputs = (shard_input for shard_input in inputs if shard_input.part != "train")
    parts = _prepare(recipe, tokenizer, folder, sources, inputs, _engine())
    if "train" in parts:
        text = PreparedText.open(folder / "train")
        size = f"{text.documents:,} documents with {text.tokens:,} tokens"
        logger.info(f"{size} in {folder}, unigram entropy {text.unigram_entropy:.2f} nats")
    elif recipe.corpus.sources and not heldout_only:
        raise CorpusError(f"recipe {recipe.name}: corpus.sources have no text to train on")


def prepare_labelled(recipe: Recipe, tokenizer: Tokenizer, texts: Path, folder: Path) -> None:
    """Write the token ids of the texts to train on and of dev into a folder, as `prepare` does.

    Args:
        texts: folder that `write_texts` wrote.
    """
    _prepare(recipe, tokenizer, folder, (), read_texts(texts, "train", "dev"), make_shards)


def text_settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that prepared labelled text depends on, in addition to files and tokenizer. Of `finetune.test`, it
    depends on which texts are left out."""
    config, distill = recipe.finetune, recipe.distill
    keys = {"labels", "dev_fraction", "augment_fraction", "test_fraction", "problem_type"}
    sources = {"train": source_settings(config.train), "test": split_settings(config.test)}
    unlabelled = source_settings(distill.sources if distill else ())
    return config.model_dump(mode="json", include=keys) | sources | {"unlabelled": unlabelled}


def corpus_settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that prepared pretraining text depends on, in addition to files and tokenizer."""
    sources = {name: split_settings(getattr(recipe.corpus, name)) for name in ("sources", "heldout")}
    left_out, cut = _split_settings(recipe.left_out_of_corpus), recipe.pretrain.examples.sentence_tokens
    return recipe.corpus.model_dump(mode="json") | sources | {"left_out": left_out, "sentence_tokens": cut}


def _split_settings(config: FinetuneConfig) -> dict[str, Any]:
    """Settings that the test and dev texts of a classifier depend on."""
    sources = {name: split_settings(getattr(config, name)) for name in ("train", "test")}
    without_label = sorted(value for value, label in config.labels.items() if not label)
    return config.model_dump(include={"dev_fraction", "test_fraction"}) | sources | {"without_label": without_label}


def _prepare(
    recipe: Recipe,
    tokenizer: Tokenizer,
    folder: Path,
    sources: Sequence[SourceConfig],
    inputs: Iterator[ShardInput],
    engine: Engine,
) -> list[str]:
    """Make the shards of all parts. Returns the names of the parts."""
    try:
        total = size(sources, recipe.data) if sources else None
        return _make(folder, tokenizer, engine(inputs, tokenizer, folder), total)
    except OSError as error:
        raise CorpusError(
            f"{folder}: {reason(error, recipe.folder)}. Remove the cause, then run the same command again: it continues"
        ) from error


def _engine() -> Engine:
    """`make_shards` on the Ray cluster that RAY_ADDRESS names; on this machine if it is not set."""
    if not os.environ.get("RAY_ADDRESS"):
        return make_shards
    try:
        from training.corpus.engines import ray
    except ModuleNotFoundError as error:
        raise CorpusError(
            "RAY_ADDRESS is set, but Ray is not installed: unset it to encode the text on this machine, or "
            'pip install -c constraints.txt -e ".[cluster]"'
        ) from error
    return ray.make_shards


def _make(folder: Path, tokenizer: Tokenizer, finished: MadeShards, total: int | None) -> list[str]:
    made: dict[str, list[Shard]] = defaultdict(list)
    with tqdm(desc=folder.name.partition("-")[0], total=total, unit="B", unit_scale=True, disable=None) as bar:
        for shard_input, shard in finished:
            made[shard_input.part].append(shard)
            bar.update(shard_input.bytes_read - bar.n)
    parts = []
    for part, shards in sorted(made.items()):
        sources = _count_sources(part, shards)
        if any(shard.tokens for shard in shards):
            _write_manifest(folder / part, sources, shards, tokenizer)
            parts.append(part)
    return parts


def _count_sources(part: str, shards: Sequence[Shard]) -> dict[str, Counter[str]]:
    """Log and return the counts of each source."""
    sources: dict[str, Counter[str]] = defaultdict(Counter)
    for shard in shards:
        sources[shard.source].update({key: getattr(shard, key) for key in COUNTS})
    for name, counts in sources.items():
        logger.info(f"{part}: {counts['documents']:,} documents, {counts['tokens']:,} tokens of {name}")
        for advice in _advice(part, counts, is_labelled="labels.npy" in shards[0].sizes):
            logger.warning("%s: %s", name, advice)
    return sources


def _write_manifest(
    folder: Path, sources: dict[str, Counter[str]], shards: Sequence[Shard], tokenizer: Tokenizer
) -> None:
    token_counts = count_tokens(folder, shards, tokenizer.vocab_size)
    token_counts[tokenizer.unk_id] = 0  # masked only if a text has no other tokens
    manifest = {
        "format": FORMAT,
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        **{key: sum(counts[key] for counts in sources.values()) for key in COUNTS},
        "unigram_entropy": entropy(token_counts),
        "sources": sources,
        "shards": [asdict(shard) for shard in shards],
    }
    write_json(folder / "manifest.json", manifest)


def _advice(part: str, counts: Counter[str], *, is_labelled: bool) -> Iterator[str]:
    """Advice about text that will not teach the network what its owner expects (google-research/bert#125)."""
    documents, sentences = counts["documents"], counts["sentences"]
    if loss := _loss(counts, is_labelled=is_labelled):
        yield loss
    elif not is_labelled and documents > 1 and sentences < 1.1 * documents:
        yield (
            f"{documents} documents have only {sentences} sentences, and a document of one sentence teaches no next "
            "sentence. In plain text a blank line ends a document: do not put one between sentences, and end those "
            "without a full stop with a line break"
        )
    if counts["cut_sentences"] > 0.01 * sentences:
        yield (
            f"{counts['cut_sentences']} sentences are longer than an example (pretrain.examples.short_length) and were "
            "cut, so pairs may be parts of one sentence; end sentences with a line break or a full stop and a space"
        )
    if part.startswith("heldout") and documents < FEW_HELDOUT_DOCUMENTS:
        yield (
            f"only {documents} documents are held out, so figures on them are mostly chance; raise "
            "corpus.heldout_fraction, or name more text as corpus.heldout"
        )


def _loss(counts: Counter[str], *, is_labelled: bool) -> str:
    """The share of a source's letters that become [UNK], the reason and the remedy; "" if the share is small."""
    lost, letters = counts["lost_letters"], counts["letters"]
    if lost <= (0.1 if is_labelled else 0.01) * letters:  # augmenting puts some labelled texts into capitals
        return ""
    dropped = "" if is_labelled else f" ({counts['unknown_sentences']:,} sentences, mostly [UNK], are dropped)"
    if 2 * counts["long_word_letters"] > lost:
        remedy = (
            f"a word of more than {MAX_WORD} characters is [UNK]. A script without blanks between words, such as Thai, "
            "needs a word segmenter that puts blanks into all texts first, those of requests too"
        )
    elif is_labelled:
        remedy = "the network's vocabulary does not have them. Start from a network that was pretrained on such text"
    else:
        remedy = "the vocabulary does not have them. Learn the tokenizer from this source too"
    return f"{lost / letters:.0%} of the letters become [UNK]{dropped}: {remedy}"


def entropy(counts: NDArray[np.int64]) -> float:
    """Entropy in nats of the distribution with these counts; 0 if there are none."""
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())
