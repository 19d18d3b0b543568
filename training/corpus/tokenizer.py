"""Learning the vocabulary of word pieces from a sample of the training text."""

from __future__ import annotations

import heapq
import itertools
import logging
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from model.tokenizer import Tokenizer
from training.corpus.shards import read_json, write_json
from training.errors import CorpusError
from training.recipe import Recipe
from training.sources.documents import documents
from training.sources.files import file_hashes, files

logger = logging.getLogger(__name__)

MADE_FROM = "made-from.json"


def make_tokenizer(recipe: Recipe) -> Path:
    """Learn the recipe's vocabulary, or copy that of `pretrain.start`, unless it is there already.

    Returns:
        The run's folder `tokenizer`.

    Raises:
        SourceError: text that cannot be read.
        CorpusError: there is no text.
        CheckpointError: `pretrain.start` holds no tokenizer.
    """
    folder = recipe.folder / "tokenizer"
    made_from = _made_from(recipe)
    found = read_json(folder / MADE_FROM)
    if found == made_from and (folder / "tokenizer.json").is_file():
        logger.info("%s is there already", folder)
        return folder
    if found is not None:
        logger.warning("%s was made from other text or settings: making it anew", folder)
    if recipe.pretrain.start is None:
        train_tokenizer(recipe)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        Tokenizer.load(recipe.pretrain.start).save(folder)
    write_json(folder / MADE_FROM, made_from)
    return folder


def _made_from(recipe: Recipe) -> dict[str, Any]:
    if recipe.pretrain.start is not None:
        return {"tokenizer": Tokenizer.load(recipe.pretrain.start).to_json()}
    sources = recipe.corpus.sources
    return {
        "config": recipe.tokenizer.model_dump(mode="json"),
        "sources": [source.model_dump(mode="json", exclude={"note"}) for source in sources],
        "files": file_hashes(sources, recipe.data),
    }


def train_tokenizer(recipe: Recipe) -> Tokenizer:
    """Learn a vocabulary from a sample of all training sources and save it in the run's folder `tokenizer`.

    Raises:
        SourceError: text that cannot be read.
        CorpusError: there is no text.
    """
    config = recipe.tokenizer
    texts = sample(_texts(recipe), config.sample_megabytes * 1_000_000)
    if not texts:
        raise CorpusError(f"recipe {recipe.name}: corpus.sources hold no text to learn a vocabulary from")
    tokenizer = Tokenizer.train(
        texts, config.vocab_size, lowercase=config.lowercase, min_frequency=config.min_frequency
    )
    folder = recipe.folder / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


def _texts(recipe: Recipe) -> Iterator[str]:
    sources = recipe.corpus.sources
    total = sum(file.stat().st_size for source in sources for file in files(source, recipe.data))
    with tqdm(desc="sample", total=total or None, unit="B", unit_scale=True) as bar:
        for source in sources:
            for document in documents(source, recipe.data, bar.update, recipe.hub_cache):
                yield document.text


def sample(texts: Iterable[str], characters: int) -> list[str]:
    """Paragraphs drawn evenly from all of the text, about so many characters; the same in every run.

    Those of lowest hash are kept: one pass, and never much more than the sample in memory.
    """
    kept: list[tuple[int, int, str]] = []  # a heap with the highest hash on top
    size = 0
    paragraphs = itertools.chain.from_iterable(text.split("\n") for text in texts)
    for number, paragraph in enumerate(filter(None, paragraphs)):
        rank = -zlib.crc32(b"%d" % number)
        if size >= characters and rank <= kept[0][0]:
            continue
        heapq.heappush(kept, (rank, number, paragraph))
        size += len(paragraph)
        while size - len(kept[0][2]) >= characters:
            size -= len(heapq.heappop(kept)[2])
    return [paragraph for _, _, paragraph in sorted(kept, key=lambda item: item[1])]
