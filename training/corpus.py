"""Documents to sentences to token ids, kept as memory-mapped shards.

    corpus/
        fingerprint.json          what it was made from
        train/                    one such folder for training, one for each held-out source
            00000/                a shard: some 8 MB of text of one source
                tokens.npy        (tokens,) uint16, or uint32 for a vocabulary over 65,536
                sentences.npy     (sentences + 1,) int32: where each sentence starts, in tokens of the shard
                documents.npy     (documents + 1,) int32: where each document starts, in sentences of the shard
                shard.json        counts and checksums
            manifest.json         written last: the shards, counts, unigram entropy, hash of the tokenizer
        heldout/<source>/

A shard appears under its name only when it is complete. So an interrupted run leaves nothing half-written, and the
next run makes only the shards that are missing.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import heapq
import itertools
import json
import logging
import os
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tqdm import tqdm

from model.tokenizer import Tokenizer
from training.config import CorpusConfig, Recipe, SourceConfig
from training.errors import CorpusError
from training.sentences import SentenceEncoder
from training.sources import documents, files, source_name

FORMAT = 1
"""Raised when the files change, so that older ones are made anew."""

PIECE_CHARACTERS = 8_000_000
"""Text per shard; memory in use is a few times this per worker, whatever the size of the corpus."""

OPEN_SHARDS = 256
"""Memory maps kept open at a time; each holds a file descriptor."""

ARRAYS = ("tokens", "sentences", "documents")

logger = logging.getLogger(__name__)


class Corpus:
    """Read access to one folder of shards: token ids on disk, boundaries in memory (8 bytes per sentence)."""

    num_tokens: int
    num_sentences: int
    num_documents: int
    unigram_entropy: float
    """Entropy of the distribution of single tokens, in nats: the loss of a model that has learned only that."""
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
        self._shards = [Shard.from_json(values) for values in manifest["shards"]]
        self._first = [0, *itertools.accumulate(shard.tokens for shard in self._shards)]
        first_sentence = itertools.accumulate((shard.sentences for shard in self._shards), initial=0)
        self.sentence_starts = self._joined("sentences", self._first)
        self.document_starts = self._joined("documents", first_sentence)
        self._tokens = functools.lru_cache(OPEN_SHARDS)(self._map_tokens)

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open a prepared folder (`corpus/train`, `corpus/heldout/<source>`), checking that its files are whole.

        Raises:
            CorpusError: a file is missing or of another size; the message names it.
        """
        manifest = _read_json(folder / "manifest.json")
        if manifest is None:
            raise CorpusError(f"{folder}: no prepared corpus here, or an unfinished one; run prepare again")
        if manifest.get("format") != FORMAT:
            raise CorpusError(f"{folder}: made by another version of this program; run prepare again")
        for values in manifest["shards"]:
            Shard.from_json(values).check_sizes(folder)
        return cls(folder, manifest)

    def tokens(self, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """Ids of the tokens `first <= i < last` of the corpus, which must lie within one document.

        Returns:
            (last - first,) uint16 or uint32: a view of the file, read-only.
        """
        shard = bisect.bisect_right(self._first, first) - 1
        offset = self._first[shard]
        return self._tokens(shard)[first - offset : last - offset]

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise CorpusError if these ids were made with another vocabulary."""
        if tokenizer_hash(tokenizer) != self.tokenizer_hash:
            raise CorpusError(f"{self.folder}: made with another tokenizer; run prepare again")

    def verify(self) -> None:
        """Read every file and compare its checksum.

        Raises:
            CorpusError: names the file that differs.
        """
        for shard in self._shards:
            shard.check_contents(self.folder)

    def _map_tokens(self, shard: int) -> NDArray[np.unsignedinteger]:
        return np.load(self.folder / self._shards[shard].name / "tokens.npy", mmap_mode="r")

    def _joined(self, name: str, offsets: Iterable[int]) -> NDArray[np.int64]:
        """The offsets of all shards as one array, counted from the beginning of the corpus."""
        parts = [np.zeros(1, np.int64)]
        for shard, offset in zip(self._shards, offsets, strict=False):
            parts.append(np.load(self.folder / shard.name / f"{name}.npy")[1:].astype(np.int64) + offset)
        return np.concatenate(parts)


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Equal for tokenizers that make the same ids of every text."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


# --- one shard ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shard:
    """What `shard.json` and the manifest know of one shard."""

    name: str
    source: str
    documents: int
    sentences: int
    tokens: int
    unknown_sentences: int
    cut_sentences: int
    text_crc32: int
    """Of the text it was made from, to see whether a shard of an interrupted run is still the right one."""
    sizes: dict[str, int]
    """Bytes of each file."""
    crc32: dict[str, int]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Shard:
        return cls(**values)

    def check_sizes(self, folder: Path) -> None:
        for name, size in self.sizes.items():
            file = folder / self.name / name
            if not file.is_file() or file.stat().st_size != size:
                raise CorpusError(f"{file}: missing, or not {size} bytes as it was written; run prepare again")

    def check_contents(self, folder: Path) -> None:
        self.check_sizes(folder)
        for name, checksum in self.crc32.items():
            file = folder / self.name / name
            if zlib.crc32(file.read_bytes()) != checksum:
                raise CorpusError(
                    f"{file}: damaged, its checksum differs; delete {folder.parent} and run prepare again"
                )


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one shard on its way to a worker."""

    part: str
    """`train` or `heldout/<source>`."""
    name: str
    source: str
    lines: bool
    """Whether a line is a sentence."""
    texts: list[str]
    crc32: int


def write_shard(encoder: SentenceEncoder, corpus: Path, piece: Piece) -> Shard:
    """Tokenize one piece of text into its folder, which appears whole or not at all."""
    encoded = encoder.encode(piece.texts, lines=piece.lines)
    final = corpus / piece.part / piece.name
    unfinished = final.with_suffix(".tmp")
    for leftover in (final, unfinished):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    arrays = (encoded.tokens, encoded.sentence_starts, encoded.document_starts)
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(unfinished / f"{name}.npy", array)
    contents = {file.name: file.read_bytes() for file in sorted(unfinished.iterdir())}
    shard = Shard(
        name=piece.name,
        source=piece.source,
        documents=len(encoded.document_starts) - 1,
        sentences=len(encoded.sentence_starts) - 1,
        tokens=len(encoded.tokens),
        unknown_sentences=encoded.unknown_sentences,
        cut_sentences=encoded.cut_sentences,
        text_crc32=piece.crc32,
        sizes={name: len(content) for name, content in contents.items()},
        crc32={name: zlib.crc32(content) for name, content in contents.items()},
    )
    _write_json(unfinished / "shard.json", asdict(shard))
    unfinished.replace(final)
    return shard


def _finished_shard(corpus: Path, piece: Piece) -> Shard | None:
    """The shard of this very text if an earlier run completed it."""
    folder = corpus / piece.part
    values = _read_json(folder / piece.name / "shard.json")
    if values is None or values["text_crc32"] != piece.crc32:
        return None
    shard = Shard.from_json(values)
    try:
        shard.check_contents(folder)
    except CorpusError:
        return None
    return shard


# --- prepare ------------------------------------------------------------------------------------------------


def prepare(recipe: Recipe, tokenizer: Tokenizer) -> Path:
    """Make `corpus/train` and a `corpus/heldout/<source>` for each held-out source, unless they are there already.

    Run again after an interruption, it continues. Made from another recipe, tokenizer or text, it starts anew.

    Returns:
        The folder `corpus`.

    Raises:
        SourceError: text that cannot be read.
        CorpusError: no text to train on, or two sources of one name.
    """
    corpus = recipe.folder / "corpus"
    fingerprint = _fingerprint(recipe, tokenizer)
    if _read_json(corpus / "fingerprint.json") != fingerprint:
        if corpus.exists():
            logger.warning("%s was made from another recipe, tokenizer or text: starting anew", corpus)
            shutil.rmtree(corpus)
        corpus.mkdir(parents=True)
        _write_json(corpus / "fingerprint.json", fingerprint)
    if not (corpus / "train" / "manifest.json").exists():
        shards = _make_shards(recipe, tokenizer, corpus)
        if not sum(shard.tokens for shard in shards.get("train", [])):
            raise CorpusError(f"{recipe.name}: corpus.sources hold no text to train on")
        for part in sorted(shards, reverse=True):  # so that train comes last
            _write_manifest(corpus / part, shards[part], tokenizer)
    return corpus


def _fingerprint(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything the shards depend on."""
    config = recipe.corpus
    for sources in (config.sources, config.heldout):
        for name, count in Counter(map(source_name, sources)).items():
            if count > 1:
                raise CorpusError(
                    f"{recipe.name}: {count} sources are called {name!r}; give each a name of its own"
                )
    return {
        "format": FORMAT,
        "piece_characters": PIECE_CHARACTERS,
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "config": config.model_dump(mode="json", exclude={"workers"}),
        "files": {
            str(file.relative_to(recipe.data) if file.is_relative_to(recipe.data) else file): _file_hash(file)
            for source in (*config.sources, *config.heldout)
            for file in files(source, recipe.data)
        },
    }


def _file_hash(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _make_shards(recipe: Recipe, tokenizer: Tokenizer, corpus: Path) -> dict[str, list[Shard]]:
    """Every shard of every part, in order."""
    done: dict[str, dict[str, Shard]] = {}
    with tqdm(desc="prepare", unit="B", unit_scale=True, unit_divisor=1000) as bar:
        missing = _missing(_pieces(recipe), corpus, done, bar)
        for piece, shard in _in_workers(missing, recipe.corpus.workers, tokenizer, corpus):
            done.setdefault(piece.part, {})[piece.name] = shard
            bar.update(sum(map(len, piece.texts)))
    return {part: [shards[name] for name in sorted(shards)] for part, shards in done.items()}


def _missing(
    pieces: Iterable[Piece], corpus: Path, done: dict[str, dict[str, Shard]], bar: tqdm[Any]
) -> Iterator[Piece]:
    """The pieces that no earlier run completed; the others go to `done`."""
    for piece in pieces:
        shard = _finished_shard(corpus, piece)
        if shard is None:
            yield piece
        else:
            done.setdefault(piece.part, {})[piece.name] = shard
            bar.update(sum(map(len, piece.texts)))


def _pieces(recipe: Recipe) -> Iterator[Piece]:
    """The text of each shard. The same in every run, whatever the number of workers."""
    numbers: Counter[str] = Counter()
    for source, routed in itertools.groupby(_routed(recipe), key=lambda item: item[1]):
        waiting: dict[str, list[str]] = {}
        sizes: Counter[str] = Counter()
        for part, _, text in routed:
            waiting.setdefault(part, []).append(text)
            sizes[part] += len(text)
            if sizes[part] >= PIECE_CHARACTERS:
                yield _piece(part, source, waiting.pop(part), numbers)
                sizes[part] = 0
        for part, texts in waiting.items():
            yield _piece(part, source, texts, numbers)


def _piece(part: str, source: SourceConfig, texts: list[str], numbers: Counter[str]) -> Piece:
    name = f"{numbers[part]:06d}"
    numbers[part] += 1
    crc32 = functools.reduce(lambda crc, text: zlib.crc32(text.encode("utf-8", "replace"), crc), texts, 0)
    return Piece(part, name, source_name(source), source.lines == "sentence", texts, crc32)


def _routed(recipe: Recipe) -> Iterator[tuple[str, SourceConfig, str]]:
    """(part, source, text) of each document. No text is in both training and held-out, even if it occurs twice."""
    config, root = recipe.corpus, recipe.data
    heldout: set[int] = set()
    for source in config.heldout:
        for document in documents(source, root):
            heldout.add(text_hash(document.text))
            yield f"heldout/{source_name(source)}", source, document.text
    below = 0 if config.heldout else int(config.heldout_fraction * 2**64)
    if below:
        heldout = {key for source in config.sources for key in _at_least_one(source, root, below)}
    for source in config.sources:
        for document in documents(source, root):
            key = text_hash(document.text)
            if key >= below and key not in heldout:
                yield "train", source, document.text
            elif not config.heldout:
                yield f"heldout/{source_name(source)}", source, document.text


def text_hash(text: str) -> int:
    """64 bits that do not depend on case or white space."""
    normalised = " ".join(text.lower().split()).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(normalised, digest_size=8).digest(), "big")


def _at_least_one(source: SourceConfig, root: Path, below: int) -> set[int]:
    """The lowest hash of a source so small that no hash is below the limit; a single text is kept for training."""
    lowest: set[int] = set()
    for document in documents(source, root):
        key = text_hash(document.text)
        if key < below:
            return set()
        lowest = set(sorted({*lowest, key})[:2])
    return {min(lowest)} if len(lowest) > 1 else set()


def _write_manifest(folder: Path, shards: list[Shard], tokenizer: Tokenizer) -> None:
    totals = ("documents", "sentences", "tokens", "unknown_sentences", "cut_sentences")
    per_source: dict[str, Counter[str]] = {}
    frequencies = np.zeros(tokenizer.vocab_size, np.int64)
    for shard in shards:
        counts = per_source.setdefault(shard.source, Counter())
        counts.update({key: getattr(shard, key) for key in totals})
        ids = np.load(folder / shard.name / "tokens.npy", mmap_mode="r")
        frequencies += np.bincount(ids, minlength=tokenizer.vocab_size)
    manifest = {
        "format": FORMAT,
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        **{key: sum(counts[key] for counts in per_source.values()) for key in totals},
        "unigram_entropy": entropy(frequencies),
        "sources": per_source,
        "shards": [asdict(shard) for shard in shards],
    }
    _write_json(folder / "manifest.json", manifest)


def entropy(frequencies: NDArray[np.int64]) -> float:
    """Of a distribution given by counts, in nats."""
    counts = frequencies[frequencies > 0]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


# --- worker processes ---------------------------------------------------------------------------------------

_worker: tuple[SentenceEncoder, Path]
"""Set once in each worker process."""


def _start_worker(tokenizer: str, corpus: Path) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    _worker = SentenceEncoder(Tokenizer(tokenizers.Tokenizer.from_str(tokenizer))), corpus


def _work(piece: Piece) -> Shard:
    return write_shard(*_worker, piece)


def _in_workers(
    pieces: Iterable[Piece], workers: int, tokenizer: Tokenizer, corpus: Path
) -> Iterator[tuple[Piece, Shard]]:
    """Shards as they are completed. At most two pieces per worker are in memory."""
    if workers == 1:
        encoder = SentenceEncoder(tokenizer)
        yield from ((piece, write_shard(encoder, corpus, piece)) for piece in pieces)
        return
    arguments = (tokenizer.to_json(), corpus)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, arguments)
    running: dict[Future[Shard], Piece] = {}
    try:
        for piece in pieces:
            running[pool.submit(_work, piece)] = piece
            if len(running) >= 2 * workers:
                yield from _completed(running)
        while running:
            yield from _completed(running)
    except BrokenProcessPool as error:
        raise CorpusError(
            "a worker process died, perhaps for lack of memory; run prepare again, it continues"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _completed(running: dict[Future[Shard], Piece]) -> list[tuple[Piece, Shard]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    return [(running.pop(future), future.result()) for future in done]


# --- the vocabulary -----------------------------------------------------------------------------------------


def train_tokenizer(recipe: Recipe) -> Tokenizer:
    """Learn a vocabulary from a sample of the training sources and save it as `tokenizer` beside the corpus.

    Raises:
        SourceError: text that cannot be read.
        CorpusError: there is no text.
    """
    config = recipe.tokenizer
    texts = sample(_progress(recipe), config.sample_megabytes * 1_000_000)
    if not texts:
        raise CorpusError(f"{recipe.name}: corpus.sources hold no text to learn a vocabulary from")
    tokenizer = Tokenizer.train(
        texts, config.vocab_size, lowercase=config.lowercase, min_frequency=config.min_frequency
    )
    folder = recipe.folder / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


def _progress(recipe: Recipe) -> Iterator[str]:
    with tqdm(desc="sample", unit="B", unit_scale=True, unit_divisor=1000) as bar:
        for source in recipe.corpus.sources:
            for document in documents(source, recipe.data):
                bar.update(len(document.text))
                yield document.text


def sample(texts: Iterable[str], characters: int) -> list[str]:
    """Paragraphs drawn evenly from all of the text, about so many characters; the same in every run.

    Those with the lowest hashes are kept: one pass over the text, and never more than the sample in memory.
    """
    kept: list[tuple[int, int, str]] = []
    size = 0
    paragraphs = itertools.chain.from_iterable(text.split("\n") for text in texts)
    for number, paragraph in enumerate(paragraphs):
        rank = zlib.crc32(f"{number} {paragraph[:64]}".encode("utf-8", "replace"))
        if size >= characters and rank >= -kept[0][0]:
            continue
        heapq.heappush(kept, (-rank, number, paragraph))
        size += len(paragraph)
        while size - len(kept[0][2]) >= characters:
            size -= len(heapq.heappop(kept)[2])
    return [paragraph for _, _, paragraph in sorted(kept, key=lambda item: item[1])]


# --- small files --------------------------------------------------------------------------------------------


def _read_json(file: Path) -> Any:
    """Contents of a file that was written whole; None if it is not there."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def _write_json(file: Path, values: Any) -> None:
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(values, indent=1) + "\n")
    unfinished.replace(file)
