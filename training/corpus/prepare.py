"""`prepare`: sources to memory-mapped token ids.

    corpus/                   text to pretrain on          labelled/             text for the classifier
        train/                                                 train/
        heldout/<source>/                                      dev/<source>/

Each of these folders holds shards (training.corpus.shards) and a `manifest.json` with counts; the `manifest.json` of
`corpus/` or `labelled/` is written last. A shard appears only when it is complete, so the next run makes only the
shards that an interrupted run is missing.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from model.tokenizer import Tokenizer
from model.tokenizer_dir import MAX_WORD
from training.corpus.encode import MAX_SENTENCE_TOKENS
from training.corpus.engines.local import make_shards
from training.corpus.fingerprint import changes, check_unused, file_hashes, source_settings, tokenizer_hash
from training.corpus.inputs import labelled_inputs, pretraining_inputs
from training.corpus.reader import FORMAT, PreparedText, count_tokens
from training.corpus.shards import LABELLED_COLUMNS, Shard, ShardInput
from training.errors import CorpusError, MissingTextError, RunError
from training.recipe import SINGLE_LABEL, Recipe, SourceConfig
from training.runtime.files import read_json, reason, write_json
from training.runtime.lock import check_idle, run_lock
from training.sources.documents import documents
from training.sources.files import size

COUNTS = (
    *("documents", "sentences", "tokens", "unknown_sentences", "cut_sentences"),
    *("letters", "lost_letters", "long_word_letters"),
)

TRAINED_ON = "finetune/labelled.json"
"""File of a run with the fingerprint of the labelled text that its classifier was trained on."""

FEW_HELDOUT_DOCUMENTS = 20
"""Fewer held-out documents make figures that are mostly chance."""

logger = logging.getLogger(__name__)

MadeShards = Iterator[tuple[ShardInput, Shard]]
Engine = Callable[[Iterator[ShardInput], Tokenizer, Path], MadeShards]
"""`make_shards` of a module in `training.corpus.engines`."""


def prepare(recipe: Recipe, tokenizer: Tokenizer, *, heldout_only: bool = False) -> Path:
    """Make `corpus/` from the recipe's pretraining text, unless it is there. An interrupted run is continued; with
    another recipe, tokenizer or text it is made again.

    Args:
        heldout_only: leave out the text to train on.

    Returns:
        The folder `corpus`.

    Raises:
        SourceError: text that cannot be read.
        CorpusError: the sources hold no text, or the disk is full.
        RunError: another process works on the corpus, or a checkpoint needs it.
    """
    sources = (*recipe.corpus.heldout, *recipe.corpus.sources, *recipe.left_out_of_corpus)
    settings = _corpus_settings(recipe)
    inputs = pretraining_inputs(recipe)
    if heldout_only:
        settings["heldout_only"] = True  # only here: corpora made before keep their fingerprint
        inputs = (shard_input for shard_input in inputs if shard_input.part != "train")
    folder = _prepare(recipe, tokenizer, "corpus", sources, settings, inputs, _engine())
    parts = read_json(folder / "manifest.json")["parts"]
    if "train" not in parts and recipe.corpus.sources and not heldout_only:
        raise CorpusError(f"recipe {recipe.name}: corpus.sources have no text to train on")
    return folder


def prepare_labelled(recipe: Recipe, tokenizer: Tokenizer, *, keep_earlier: bool = False) -> Path:
    """Make `labelled/` from the texts of `finetune.train` and `distill.sources`, as `prepare` does.

    Args:
        keep_earlier: refuse to make it again, because a teacher's labels would be deleted with it.

    Returns:
        The folder `labelled`.

    Raises:
        RunError: with `keep_earlier`, the folder was made from another recipe, tokenizer or text.
    """
    unlabelled = recipe.distill.sources if recipe.distill else ()
    sources = (*recipe.finetune.train, *recipe.finetune.test, *unlabelled)
    settings = _labelled_settings(recipe) | {"unlabelled": source_settings(unlabelled), "columns": LABELLED_COLUMNS}
    inputs = labelled_inputs(recipe)
    return _prepare(recipe, tokenizer, "labelled", sources, settings, inputs, keep_earlier=keep_earlier)


def record_labelled(recipe: Recipe) -> None:
    """Keep beside the classifier what it was trained on: `labelled/` may be made again from another recipe."""
    write_json(recipe.folder / TRAINED_ON, read_json(recipe.folder / "labelled" / "fingerprint.json"))


def check_labelled_settings(recipe: Recipe) -> None:
    """Raise RunError if the run's classifier may have been trained on texts that the recipe evaluates it on: its
    sources, its split or their files have changed since. Sources of `finetune.test` may be left out."""
    if (record := read_json(recipe.folder / TRAINED_ON)) is None:
        raise RunError(
            f"{recipe.folder / TRAINED_ON} is missing, so {recipe.folder / 'sentiment'} may have been trained on the "
            "texts to evaluate on: run finetune again; put a classifier of another run into a folder of its own, and "
            "name that with --weights"
        )
    keys = ("train", "test", "labels", "dev_fraction", "test_fraction")
    settings = (record["settings"], _labelled_settings(recipe))
    before, now = ({key: values.get(key, 0) for key in keys} for values in settings)
    if all(source in before["test"] for source in now["test"]):
        now["test"] = before["test"]
    evaluated = recipe.finetune.test or recipe.finetune.train
    files = file_hashes(evaluated, recipe.data, recipe.folder / "file-hashes.json", record)
    known = {name: record["files"].get(name) for name in files}
    if changed := changes({"finetune": before, "files": known}, {"finetune": now, "files": files}):
        raise RunError(
            f"{recipe.folder / 'sentiment'} was trained with other settings or texts ({', '.join(changed)}), so the "
            "texts to evaluate on may be among its training texts: restore settings and files, or delete "
            f"{recipe.folder / 'finetune'} and run finetune again"
        )


def trained_on_files_of(recipe: Recipe) -> bool:
    """Whether the files of `finetune.train` are here, and those that the run's classifier was trained on."""
    record = read_json(recipe.folder / TRAINED_ON)
    try:
        files = file_hashes(recipe.finetune.train, recipe.data, recipe.folder / "file-hashes.json")
    except MissingTextError:
        return False
    return files.items() <= record["files"].items()


def _labelled_settings(recipe: Recipe) -> dict[str, Any]:
    config = recipe.finetune
    settings = config.model_dump(mode="json", include={"train", "test", "labels", "dev_fraction", "augment_fraction"})
    if config.test_fraction and not config.test:  # only then: texts prepared before keep their fingerprint
        settings["test_fraction"] = config.test_fraction
    if config.problem_type != SINGLE_LABEL:  # only then: texts prepared before keep their fingerprint
        settings["problem_type"] = config.problem_type
    return settings | {"train": source_settings(config.train), "test": source_settings(config.test)}


def check_corpus_settings(recipe: Recipe) -> None:
    """Raise CorpusError if the run's corpus was made with other settings. Its files are not compared: they may be gone
    where a network is trained."""
    corpus = recipe.folder / "corpus"
    if (found := read_json(corpus / "fingerprint.json")) is None:
        return
    if changed := changes({"settings": found["settings"]}, {"settings": _corpus_settings(recipe)}):
        raise CorpusError(f"{corpus}: made with other settings ({', '.join(changed)}); run prepare again")


def _corpus_settings(recipe: Recipe) -> dict[str, Any]:
    sources = {name: source_settings(getattr(recipe.corpus, name)) for name in ("sources", "heldout")}
    left_out = {"left_out": source_settings(tested)} if (tested := recipe.left_out_of_corpus) else {}
    return recipe.corpus.model_dump(mode="json") | sources | left_out


def _prepare(
    recipe: Recipe,
    tokenizer: Tokenizer,
    name: str,
    sources: Sequence[SourceConfig],
    settings: dict[str, Any],
    inputs: Iterator[ShardInput],
    engine: Engine = make_shards,
    *,
    keep_earlier: bool = False,
) -> Path:
    folder = recipe.folder / name
    complete = read_json(folder / "fingerprint.json") if _is_complete(folder) else None
    fingerprint = {
        "format": FORMAT,
        "sentencex": version("sentencex"),
        "tokenizer": tokenizer_hash(tokenizer),
        "settings": settings,
        "files": file_hashes(sources, recipe.data, recipe.folder / "file-hashes.json", complete),
    }
    earlier = read_json(folder / "fingerprint.json")
    known = json.dumps(earlier) == json.dumps(fingerprint)  # the order of labels counts
    if known and complete:
        logger.info("%s: already prepared", folder)
        return folder
    if not known:
        if earlier and keep_earlier:
            raise RunError(
                f"{folder} was made from another recipe, tokenizer or text, and has a teacher's labels: restore these, "
                "or run distill again"
            )
        if earlier and name == "corpus":
            check_unused(recipe, changes(earlier, fingerprint))
        for source in sources:  # an unreadable source fails here, before the earlier corpus is deleted
            next(documents(source, recipe.data, hub_cache=recipe.hub_cache), None)
    total = size(sources, recipe.data)
    try:
        with run_lock(recipe.folder):
            if not known:
                _start_over(folder, fingerprint)
            _make(folder, tokenizer, engine(inputs, tokenizer, folder), total)
    except OSError as error:
        raise CorpusError(
            f"{folder}: {reason(error, recipe.folder)}. Remove the cause, then run the same command again: it continues"
        ) from error
    return folder


def _start_over(folder: Path, fingerprint: dict[str, Any]) -> None:
    if folder.exists():
        check_idle(folder.parent)
        logger.warning("%s was made from another recipe, tokenizer or text: making it again", folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_json(folder / "fingerprint.json", fingerprint)


def _is_complete(folder: Path) -> bool:
    manifest = read_json(folder / "manifest.json")
    with suppress(CorpusError):
        return manifest is not None and all(PreparedText.open(folder / part) for part in manifest["parts"])
    return False


def _engine() -> Engine:
    """`make_shards` on the Ray cluster that RAY_ADDRESS names; without it, on this machine."""
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


def _make(folder: Path, tokenizer: Tokenizer, finished: MadeShards, total: int | None) -> None:
    made: dict[str, list[Shard]] = defaultdict(list)
    with tqdm(desc=folder.name, total=total, unit="B", unit_scale=True, disable=None) as bar:
        for shard_input, shard in finished:
            made[shard_input.part].append(shard)
            bar.update(shard_input.bytes_read - bar.n)
    parts = []
    for part, shards in sorted(made.items()):
        sources = _count_sources(part, shards)
        if any(shard.tokens for shard in shards):
            _write_manifest(folder / part, sources, shards, tokenizer)
            parts.append(part)
    write_json(folder / "manifest.json", {"parts": parts})


def _count_sources(part: str, shards: Sequence[Shard]) -> dict[str, Counter[str]]:
    """The counts of each source, which are logged."""
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
    token_counts[tokenizer.unk_id] = 0  # masked only where a text has nothing else
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
    """What to do about text that will not teach what its owner expects (google-research/bert#125)."""
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
            f"{counts['cut_sentences']} sentences have more than {MAX_SENTENCE_TOKENS} tokens and were cut, so pairs "
            "may be parts of one sentence; end sentences with a line break or a full stop and a space"
        )
    if part.startswith("heldout") and documents < FEW_HELDOUT_DOCUMENTS:
        yield (
            f"only {documents} documents are held out, so figures on them are mostly chance; raise "
            "corpus.heldout_fraction, or name more text as corpus.heldout"
        )


def _loss(counts: Counter[str], *, is_labelled: bool) -> str:
    """How much of a source the vocabulary cannot spell, why, and what to do; "" if it is little."""
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
    """Entropy in nats of the distribution that counts give; 0 without any."""
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())
