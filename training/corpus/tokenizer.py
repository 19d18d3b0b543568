"""`tokenizer`: learns the vocabulary of word pieces from a sample of the training text."""

from __future__ import annotations

import heapq
import itertools
import logging
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from model.tokenizer import Tokenizer
from model.tokenizer_dir import MAX_WORD, SPECIAL_TOKENS
from training.errors import CorpusError
from training.recipe import Recipe
from training.sources.documents import documents
from training.sources.files import size

SAMPLE_CHARACTERS = 100_000_000
"""Characters to learn from, drawn evenly from all sources: more text changes few pieces and takes more memory."""

LOOKED_AT_CHARACTERS = 1_000_000
"""Characters of the sample that are searched for letters that lower-casing breaks."""

MANY_STRIPPED = 0.01
"""Share of stripped letters in a text above which a warning is logged."""

logger = logging.getLogger(__name__)


def make_tokenizer(recipe: Recipe, folder: Path) -> None:
    """Learn the recipe's vocabulary, or copy that of `pretrain.start`, into a folder.

    Raises:
        SourceError: text cannot be read.
        CorpusError: the sources hold no text.
        CheckpointError: `pretrain.start` has no tokenizer.
    """
    start = recipe.pretrain.start
    tokenizer = learn_tokenizer(recipe) if start is None else Tokenizer.load(start)
    tokenizer.save(folder)
    logger.info("vocabulary of %s pieces in %s", f"{tokenizer.vocab_size:,}", folder)


def learn_tokenizer(recipe: Recipe) -> Tokenizer:
    """Learn a vocabulary from a sample of all pretraining sources.

    Raises:
        SourceError: text cannot be read.
        CorpusError: the sources hold no text.
    """
    config, sources = recipe.tokenizer, recipe.corpus.sources
    with tqdm(desc="sample", total=size(sources, recipe.data), unit="B", unit_scale=True, disable=None) as bar:
        found = (documents(source, recipe.data, bar.update) for source in sources)
        texts = sample((document.text for document in itertools.chain.from_iterable(found)), SAMPLE_CHARACTERS)
    if not texts:
        raise CorpusError(f"recipe {recipe.name}: corpus.sources have no text to learn a vocabulary from")
    logger.info(
        "learning a vocabulary of %d pieces from %.1f million characters", config.vocab_size, sum(map(len, texts)) / 1e6
    )
    if config.lowercase and (changed := stripped_letters(texts)):
        logger.warning(
            f"tokenizer.lowercase also strips marks that tell letters of this text apart ({changed}): set it to false"
        )
    tokenizer = Tokenizer.train(texts, config.vocab_size, lowercase=config.lowercase)
    if tokenizer.vocab_size == len(SPECIAL_TOKENS):
        raise CorpusError(f"recipe {recipe.name}: corpus.sources have no word of at most {MAX_WORD} characters")
    if tokenizer.vocab_size != config.vocab_size:
        logger.warning(
            f"tokenizer.vocab_size is {config.vocab_size}, but the text gives {tokenizer.vocab_size} pieces: "
            "fewer if too few pieces occur twice (add text), more if it has more letters. Training works with either"
        )
    return tokenizer


def stripped_letters(texts: Iterable[str]) -> str:
    """Examples of the letters that BERT's lower-casing changes into others, if these are common in a text.

    It strips the accents of Latin, Greek and Cyrillic letters, which readers can do without. It also strips voicing
    marks of Japanese, vowel signs of Indian scripts and tone marks of Thai, and takes Korean syllables apart.
    """
    text = "".join(itertools.islice(itertools.chain.from_iterable(texts), LOOKED_AT_CHARACTERS))
    letters = Counter(letter for letter in unicodedata.normalize("NFC", text) if not letter.isspace())
    changed = Counter({letter: count for letter, count in letters.items() if _is_stripped(letter)})
    if changed.total() <= MANY_STRIPPED * letters.total():
        return ""
    return ", ".join(letter for letter, _ in changed.most_common(5))


def _is_stripped(letter: str) -> bool:
    parts = unicodedata.normalize("NFD", letter)
    script = unicodedata.name(parts[0], "").partition(" ")[0]
    is_mark = unicodedata.category(parts[-1]) == "Mn" and script not in ("LATIN", "GREEK", "CYRILLIC", "COMBINING")
    return is_mark or (script == "HANGUL" and len(parts) > 1)


def sample(texts: Iterable[str], characters: int) -> list[str]:
    """Paragraphs of about `characters` characters together, drawn evenly from all of the text; the same in every run.

    The paragraphs with the lowest hashes are kept. This takes one pass, and little more memory than the sample.
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
