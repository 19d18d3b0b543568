"""Learning the vocabulary of word pieces from a sample of the training text."""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from model.tokenizer import Tokenizer
from training.config import Recipe
from training.errors import CorpusError
from training.sources import documents, files


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
            for document in documents(source, recipe.data, bar.update):
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
