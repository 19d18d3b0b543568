"""Documents to sentences to token ids, kept as memory-mapped shards.

    corpus/
        fingerprint.json      what it is made from
        train/                one such folder for training, one for each held-out source
            000000/           a shard (see training.corpus.shards): some 8 MB of text of one source
            manifest.json     the shards, counts per source, unigram entropy, hash of the tokenizer
        heldout/<source>/
        manifest.json         written last: the folders

A shard appears only when it is complete, so an interrupted run leaves nothing half-written, and the next run
makes only the shards that are missing.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from model.tokenizer import Tokenizer
from training.corpus.engines.local import shards_in_workers
from training.corpus.pieces import pieces
from training.corpus.sentences import MAX_SENTENCE_TOKENS
from training.corpus.shards import Shard, read_json, write_json
from training.errors import CorpusError
from training.loop.checkpoint import alone
from training.recipe import CorpusConfig, Recipe
from training.runtime.distributed import Processes
from training.sources.documents import documents
from training.sources.files import file_hashes, files

FORMAT = 4
"""Raised when the files or the way of splitting text change, so that older corpora are made anew."""

OPEN_SHARDS = 256
"""Memory maps kept open at a time; each holds a file descriptor."""

COUNTS = ("documents", "sentences", "tokens", "unknown_sentences", "cut_sentences")

logger = logging.getLogger(__name__)


class Corpus:
    """Read access to one folder of shards. Token ids stay on disk; boundaries are in memory, 8 bytes each."""

    num_tokens: int
    num_sentences: int
    num_documents: int
    unigram_entropy: float
    """Of the distribution of single tokens, in nats: the loss of a model that has learned nothing else."""
    tokenizer_hash: str
    sentence_starts: NDArray[np.int64]
    """(num_sentences + 1,) where each sentence starts, in tokens of the corpus."""
    document_starts: NDArray[np.int64]
    """(num_documents + 1,) where each document starts, in sentences of the corpus."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.num_tokens = manifest["tokens"]
        self.num_sentences = manifest["sentences"]
        self.num_documents = manifest["documents"]
        self.unigram_entropy = manifest["unigram_entropy"]
        self.tokenizer_hash = manifest["tokenizer_hash"]
        self._shards = [Shard(**values) for values in manifest["shards"]]
        for shard in self._shards:
            shard.check_sizes(folder)
        self._first_tokens = [0, *itertools.accumulate(shard.tokens for shard in self._shards)]
        first_sentences = [0, *itertools.accumulate(shard.sentences for shard in self._shards)]
        self.sentence_starts = self._joined("sentences.npy", self._first_tokens)
        self.document_starts = self._joined("documents.npy", first_sentences)
        self._map = functools.lru_cache(OPEN_SHARDS)(self._map_tokens)

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open a prepared folder, `corpus/train` or `corpus/heldout/<source>`.

        Raises:
            CorpusError: it is not prepared, or a file is missing or of another size; the message names it.
        """
        manifest = read_json(folder / "manifest.json")
        if manifest is None:
            raise CorpusError(f"{folder}: no prepared corpus, or an unfinished one; run prepare again")
        if manifest["format"] != FORMAT:
            raise CorpusError(f"{folder}: made by another version of this program; run prepare again")
        return cls(folder, manifest)

    def tokens(self, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """Ids of the tokens `first <= i < last` of the corpus, which lie within one document.

        Returns:
            (last - first,) uint16 or uint32: a read-only view of the file.
        """
        shard = bisect.bisect_right(self._first_tokens, first) - 1
        offset = self._first_tokens[shard]
        return self._map(shard)[first - offset : last - offset]

    def token_counts(self) -> NDArray[np.int64]:
        """(vocab_size,) how often each token occurs; reads the whole corpus."""
        return _token_counts(self.folder, self._shards, self.manifest["vocab_size"])

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise CorpusError if these ids were made with another vocabulary."""
        if _hash(tokenizer) != self.tokenizer_hash:
            raise CorpusError(f"{self.folder}: made with another tokenizer; run prepare again")

    def verify(self) -> None:
        """Raise CorpusError if a file is not as it was written; reads the whole corpus."""
        for shard in self._shards:
            shard.check_contents(self.folder)

    def _map_tokens(self, shard: int) -> NDArray[np.unsignedinteger]:
        return np.load(self.folder / self._shards[shard].name / "tokens.npy", mmap_mode="r")

    def _joined(self, name: str, offsets: Sequence[int]) -> NDArray[np.int64]:
        """The starts of all shards as one array, counted from the beginning of the corpus."""
        parts = [np.zeros(1, np.int64)]
        for shard, offset in zip(self._shards, offsets, strict=False):
            parts.append(np.load(self.folder / shard.name / name)[1:].astype(np.int64) + offset)
        return np.concatenate(parts)


def prepare(recipe: Recipe, tokenizer: Tokenizer) -> Path:
    """Make `corpus/train` and a `corpus/heldout/<source>` for each held-out source, unless they are there.

    Run again after an interruption, it continues. With another recipe, tokenizer or text, it starts anew.

    Returns:
        The folder `corpus`.

    Raises:
        SourceError: text that cannot be read.
        CorpusError: no text to train on, or no room on the disk.
        RunError: another process is making the corpus, or training on what is to be made anew.
    """
    corpus = recipe.folder / "corpus"
    fingerprint = _fingerprint(recipe, tokenizer)
    try:
        known = read_json(corpus / "fingerprint.json") == fingerprint
        if known and _is_whole(corpus):
            return corpus
        if not known:
            _read_beginnings(recipe)
        reader = recipe.folder / "pretrain"
        with (
            alone(recipe.folder, Processes()),
            alone(reader, Processes()) if reader.is_dir() else nullcontext(),
        ):
            if not known:
                _start_anew(corpus, fingerprint)
            _make(recipe, tokenizer, corpus)
    except OSError as error:
        raise CorpusError(f"{corpus}: {error}; when that is mended, run prepare again, it continues") from error
    return corpus


_NOTES: Any = {"__all__": {"note"}}


def _fingerprint(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything the shards depend on, except for what a hub data set holds today."""
    config = recipe.corpus
    return {
        "format": FORMAT,
        "sentencex": version("sentencex"),
        "tokenizer": _hash(tokenizer),
        "config": _settings(config),
        "files": file_hashes((*config.heldout, *config.sources), recipe.data),
    }


def _settings(config: CorpusConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude={"workers": True, "sources": _NOTES, "heldout": _NOTES})


def check_recipe(recipe: Recipe) -> None:
    """Raise CorpusError if the run's corpus was made from another recipe. Its texts are for `prepare` to
    compare; where a network is trained they need not be."""
    corpus, settings = recipe.folder / "corpus", _settings(recipe.corpus)
    found = read_json(corpus / "fingerprint.json")
    if found is None:
        return
    if changed := [key for key, value in settings.items() if found["config"].get(key) != value]:
        keys = ", ".join(f"corpus.{key}" for key in changed)
        raise CorpusError(f"{corpus}: made from another recipe ({keys}); run prepare again")


def _read_beginnings(recipe: Recipe) -> None:
    """Raise SourceError if a source's first document cannot be read: before an earlier corpus is deleted."""
    for source in (*recipe.corpus.heldout, *recipe.corpus.sources):
        next(documents(source, recipe.data, hub_cache=recipe.hub_cache), None)


def _hash(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def _start_anew(corpus: Path, fingerprint: dict[str, Any]) -> None:
    if corpus.exists():
        logger.warning("%s was made from another recipe, tokenizer or text: starting anew", corpus)
        shutil.rmtree(corpus)
    corpus.mkdir(parents=True)
    write_json(corpus / "fingerprint.json", fingerprint)


def _is_whole(corpus: Path) -> bool:
    manifest = read_json(corpus / "manifest.json")
    try:
        return manifest is not None and all(Corpus.open(corpus / part) for part in manifest["parts"])
    except CorpusError as error:
        logger.warning("%s", error)
        return False


def _make(recipe: Recipe, tokenizer: Tokenizer, corpus: Path) -> None:
    shards = _make_shards(recipe, tokenizer, corpus)
    parts = [part for part in sorted(shards) if any(shard.tokens for shard in shards[part])]
    if "train" not in parts and (recipe.corpus.sources or not parts):
        raise CorpusError(f"recipe {recipe.name}: corpus.sources hold no text to train on")
    for part in parts:
        _write_manifest(corpus / part, shards[part], tokenizer)
    write_json(corpus / "manifest.json", {"parts": parts})


def _make_shards(recipe: Recipe, tokenizer: Tokenizer, corpus: Path) -> dict[str, list[Shard]]:
    """The shards of every part, in order."""
    sources = (*recipe.corpus.heldout, *recipe.corpus.sources)
    total = sum(file.stat().st_size for source in sources for file in files(source, recipe.data))
    done: dict[str, dict[int, Shard]] = {}
    with tqdm(desc="prepare", total=total or None, unit="B", unit_scale=True) as bar:
        for piece, shard in shards_in_workers(pieces(recipe), recipe.corpus.workers, tokenizer, corpus):
            done.setdefault(piece.part, {})[piece.number] = shard
            bar.update(max(0, piece.bytes_read - bar.n))
    return {part: [shards[number] for number in sorted(shards)] for part, shards in done.items()}


def _write_manifest(folder: Path, shards: Sequence[Shard], tokenizer: Tokenizer) -> None:
    sources: dict[str, Counter[str]] = {}
    for shard in shards:
        counts = sources.setdefault(shard.source, Counter())
        counts.update({key: getattr(shard, key) for key in COUNTS})
    for name, counts in sources.items():
        _advise(name, counts)
    totals = {key: sum(counts[key] for counts in sources.values()) for key in COUNTS}
    token_counts = _token_counts(folder, shards, tokenizer.vocab_size)
    token_counts[tokenizer.unk_id] = 0  # never asked for
    manifest = {
        "format": FORMAT,
        "tokenizer_hash": _hash(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        **totals,
        "unigram_entropy": entropy(token_counts),
        "sources": sources,
        "shards": [asdict(shard) for shard in shards],
    }
    write_json(folder / "manifest.json", manifest)


def _advise(source: str, counts: Counter[str]) -> None:
    """Say what in a source will not teach what its owner expects (google-research/bert#125)."""
    if counts["documents"] > 1 and counts["sentences"] < 1.1 * counts["documents"]:
        logger.warning(
            "%s: %d documents hold only %d sentences, and no next sentence is learned from a document of one. "
            "In plain text a blank line ends a document: leave it out between sentences. A sentence ends with "
            "its line, or with a mark such as a full stop and a space",
            source,
            counts["documents"],
            counts["sentences"],
        )
    if counts["cut_sentences"] > 0.01 * counts["sentences"]:
        logger.warning(
            "%s: %d sentences have more than %d tokens and were cut, so that pairs may be parts of one. A line "
            "break or a full stop with a space ends a sentence",
            source,
            counts["cut_sentences"],
            MAX_SENTENCE_TOKENS,
        )
    if counts["unknown_sentences"] > 0.01 * counts["sentences"]:
        logger.warning(
            "%s: %d sentences were dropped because the vocabulary does not know their words; "
            "learn the tokenizer from this source too",
            source,
            counts["unknown_sentences"],
        )


def _token_counts(folder: Path, shards: Iterable[Shard], vocab_size: int) -> NDArray[np.int64]:
    total = np.zeros(vocab_size, np.int64)
    for shard in shards:
        total += np.bincount(np.load(folder / shard.name / "tokens.npy", mmap_mode="r"), minlength=vocab_size)
    return total


def entropy(counts: NDArray[np.int64]) -> float:
    """Of the distribution that counts give, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
