"""`prepare`: sources to memory-mapped token ids.

    corpus/                   text to pretrain on          labelled/             text for the classifier
        000000/                                                000000/
        ...                                                    ...
                                                               parts.npy         (documents,) uint8: `Part`
                                                               all_rows/         other parts: `ALL_ROWS`
        done.json                                              done.json

The folders 000000, ... are shards (training.corpus.shards), in the order in which sources are read. `done.json`
lists them. A shard appears only when it is complete, so the next run makes only those that an interrupted run lacks.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from model.tokenizer import Tokenizer
from model.tokenizer_dir import MAX_WORD
from training.corpus.encode import ShardEncoder, TextCounts
from training.corpus.fingerprint import source_settings, split_settings, tokenizer_hash
from training.corpus.inputs import HELDOUT, labelled_inputs, pretraining_inputs
from training.corpus.parts import ALL_ROWS, TRAIN, Part, labelled_sources, split
from training.corpus.reader import PreparedText
from training.corpus.shards import Shard, ShardInput
from training.corpus.workers import make_shards
from training.errors import CorpusError
from training.recipe import FinetuneConfig, Recipe, SourceConfig, source_name
from training.runtime.files import reason
from training.sources.documents import Document
from training.sources.files import size

FEW_HELDOUT_DOCUMENTS = 20
"""Number of held-out documents below which figures are mostly chance."""

MAX_PIECES = 2.0
"""Tokens of a word above which text is foreign to a vocabulary. Of the shipped one, English reviews need 1.2, its
Wikipedia 1.4, descriptions of packages 1.5 to 1.9; Spanish messages 2.0, German ones 2.6, Russian ones 5.4."""

logger = logging.getLogger(__name__)


def prepare(recipe: Recipe, tokenizer: Tokenizer, folder: Path, *, heldout_only: bool = False) -> dict[str, Any]:
    """Write the token ids of the recipe's pretraining text into a folder, or continue to do so.

    Args:
        heldout_only: leave out the text to train on.

    Returns:
        What `PreparedText` needs, to record.

    Raises:
        SourceError: text cannot be read.
        CorpusError: the sources hold no text, or the disk is full.
    """
    sources = (*recipe.corpus.heldout, *recipe.corpus.sources)
    inputs = pretraining_inputs(recipe)
    if heldout_only:
        inputs = (shard_input for shard_input in inputs if shard_input.use == HELDOUT)
    made = _prepare(recipe, tokenizer, folder, sources, inputs, is_labelled=False)
    if heldout_only or not recipe.corpus.sources:
        return made
    text = PreparedText(folder, made, use=TRAIN)
    if not text.tokens:
        raise CorpusError(f"recipe {recipe.name}: corpus.sources have no text to train on")
    counts = text.token_counts()
    counts[tokenizer.unk_id] = 0  # masked only if a text has no other tokens
    made["unigram_entropy"] = entropy(counts)
    size = f"{text.documents:,} documents with {text.tokens:,} tokens"
    logger.info(f"{size} in {folder}, unigram entropy {made['unigram_entropy']:.2f} nats")
    return made


def prepare_labelled(recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Write the recipe's labelled text, its token ids and the part of each text into a folder, as `prepare` does.

    Raises:
        RunError: no text of some label is left to train on.
    """
    config = recipe.finetune
    sources = labelled_sources(config, recipe.soft_labels.sources if recipe.soft_labels else ())
    inputs = labelled_inputs(recipe)
    made = _prepare(recipe, tokenizer, folder, [source for _, source in sources], inputs, is_labelled=True)
    made["labels"] = config.label_names
    text = PreparedText(folder, made)
    names = [(use, source_name(source)) for use, source in sources]
    numbers = [names.index((shard.use, shard.source)) for shard in text.shards]
    of_documents = np.repeat(numbers, [shard.documents for shard in text.shards])
    columns = {name: text.column(name) for name in ("texts", "groups", "labels", "domains", "changed")}
    columns["sources"] = of_documents
    whole = config.model_copy(update={"dev_fraction": 0.0, "test_fraction": 0.0})
    parts, all_rows = (split(columns, sources, each, lambda row: text.read([row])[0]) for each in (config, whole))
    for number, (_, name) in enumerate(names):
        of_source = of_documents == number
        counts = (~columns["changed"][of_source]).sum(), *np.bincount(parts[of_source], minlength=len(Part))[1:]
        logger.info("%s: of %s texts, %s to train on, %s for dev, %s for test", name, *map("{:,}".format, counts))
    np.save(folder / "parts.npy", parts)
    (folder / ALL_ROWS).mkdir(exist_ok=True)
    np.save(folder / ALL_ROWS / "parts.npy", all_rows)
    return made


def text_settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that prepared labelled text depends on, in addition to files and tokenizer. Of `finetune.test`,
    those settings count that decide which texts are left out of training."""
    config, teaching = recipe.finetune, recipe.soft_labels
    keys = {"labels", "dev_fraction", "augment_fraction", "test_fraction", "problem_type"}
    sources = {"train": source_settings(config.train), "test": split_settings(config.test)}
    unlabelled = source_settings(teaching.sources if teaching else ())
    return config.model_dump(mode="json", include=keys) | sources | {"unlabelled": unlabelled}


def corpus_settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that prepared pretraining text depends on, in addition to files and tokenizer."""
    sources = {name: split_settings(getattr(recipe.corpus, name)) for name in ("sources", "heldout")}
    left_out, cut = _split_settings(recipe.left_out_of_corpus), recipe.pretrain.examples.sentence_tokens
    return recipe.corpus.model_dump(mode="json") | sources | {"left_out": left_out, "sentence_tokens": cut}


def _split_settings(config: FinetuneConfig) -> dict[str, Any]:
    """Settings that the test and dev texts of a classifier depend on."""
    keys = {"dev_fraction", "test_fraction", "labels", "problem_type"}
    sources = {"train": source_settings(config.train, "read", "balance", "by"), "test": split_settings(config.test)}
    return config.model_dump(include=keys) | sources


def _prepare(
    recipe: Recipe,
    tokenizer: Tokenizer,
    folder: Path,
    sources: Sequence[SourceConfig],
    inputs: Iterator[ShardInput],
    *,
    is_labelled: bool,
) -> dict[str, Any]:
    """Make all shards. Returns what `PreparedText` needs."""
    shards = []
    try:
        total, name = size(sources, recipe.data), folder.name.partition("-")[0]
        with tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=None) as bar:
            for shard_input, shard in make_shards(inputs, tokenizer, folder):
                shards.append(shard)
                bar.update(shard_input.bytes_read - bar.n)
    except OSError as error:
        raise CorpusError(
            f"{folder}: {reason(error, recipe.folder)}. Remove the cause, then run the same command again: it continues"
        ) from error
    return {
        "advice": _log_counts(shards, is_labelled=is_labelled),
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        "shards": [asdict(shard) for shard in shards],
    }


def vocabulary_advice(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[str]:
    """Advice about labelled texts that are foreign to a network, by its vocabulary; empty if there is none."""
    counts = ShardEncoder(tokenizer).encode_labelled(documents).counts
    return list(_advice("", Counter(asdict(counts)), is_labelled=True))


def _log_counts(shards: Sequence[Shard], *, is_labelled: bool) -> list[str]:
    """Log the counts of each source, and advice about its text, which is returned."""
    sources: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for shard in shards:
        sources[shard.use, shard.source].update({each.name: getattr(shard, each.name) for each in fields(TextCounts)})
    found = []
    for (use, name), counts in sources.items():
        if not is_labelled:  # its parts are logged
            logger.info(f"{use}: {counts['documents']:,} documents, {counts['tokens']:,} tokens of {name}")
        found += [f"{name}: {advice}" for advice in _advice(use, counts, is_labelled=is_labelled)]
    for advice in found:
        logger.warning("%s", advice)
    return found


def _advice(use: str, counts: Counter[str], *, is_labelled: bool) -> Iterator[str]:
    """Advice about text that will not teach the network what its owner expects (google-research/bert#125)."""
    documents, sentences = counts["documents"], counts["sentences"]
    if fault := _vocabulary_fault(counts, is_labelled=is_labelled):
        yield fault
    elif not is_labelled and documents > 1 and sentences < 1.1 * documents:
        yield (
            f"{documents} documents have only {sentences} sentences, and a document of one sentence teaches no next "
            "sentence. In plain text a blank line ends a document: do not put one between sentences, and end those "
            'without a full stop with a line break; if each file is a document, set `format` to "document"'
        )
    if counts["cut_sentences"] > 0.01 * sentences:
        yield (
            f"{counts['cut_sentences']} sentences are longer than an example (pretrain.examples.short_length) and were "
            "cut, so pairs may be parts of one sentence; end sentences with a line break or a full stop and a space"
        )
    if use == HELDOUT and documents < FEW_HELDOUT_DOCUMENTS:
        yield (
            f"only {documents} documents are held out, so figures on them are mostly chance; raise "
            "corpus.heldout_fraction, or name more text as corpus.heldout"
        )


def _vocabulary_fault(counts: Counter[str], *, is_labelled: bool) -> str:
    """The share of a source's letters that become [UNK], or the pieces of a word, the reason and the remedy; "" if the
    vocabulary fits."""
    lost, letters, pieces = counts["lost_letters"], counts["letters"], counts["pieces"] / max(1, counts["words"])
    start = "Start from a network that was pretrained on such text: finetune.pretrained=FOLDER"
    if lost <= (0.1 if is_labelled else 0.01) * letters:  # augmenting puts some labelled texts into capitals
        foreign = f"a word needs {pieces:.1f} pieces, about 1.2 in text that the network knows. {start}"
        return foreign if is_labelled and pieces > MAX_PIECES else ""
    dropped = "" if is_labelled else f" ({counts['unknown_sentences']:,} sentences, mostly [UNK], are dropped)"
    if 2 * counts["long_word_letters"] > lost:
        remedy = (
            f"a word of more than {MAX_WORD} characters is [UNK]. A script without blanks between words, such as Thai, "
            "needs a word segmenter that puts blanks into all texts first, those of requests too"
        )
    elif is_labelled:
        remedy = f"the network's vocabulary does not have them. {start}"
    else:
        remedy = "the vocabulary does not have them. Learn the tokenizer from this source too"
    return f"{lost / letters:.0%} of the letters become [UNK]{dropped}: {remedy}"


def entropy(counts: NDArray[np.int64]) -> float:
    """Entropy in nats of the distribution with these counts; 0 if there are none."""
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())
