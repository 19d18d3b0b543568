"""A document to sentences, and sentences to token ids."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import sentencex
from numpy.typing import NDArray

from model.tokenizer import Tokenizer

MAX_SENTENCE_TOKENS = 125
"""A longer one is cut: an example of 128 tokens has no room for more, and its middle would never be seen."""

MAX_UNKNOWN = 0.5
"""A sentence with a larger share of [UNK] is of another script; it is dropped."""

CACHED_WORDS = 300_000
"""Words whose pieces are remembered, some 100 bytes each."""

_BATCH = 2000
"""Sentences whose words are held at a time."""

_WORD = re.compile(r"\[UNK\]|[!-/:-@\[-`{-~]|[^ \t\n\r!-/:-@\[-`{-~]+")
"""One character of ASCII punctuation, or a run of anything else between ASCII white space."""

_PROBE = "the cat's (red-hot) film, 3.14"
"""Comes out otherwise word by word if a tokenizer does not split as BERT's does."""

_GLUED = re.compile(r"""[.!?](?<=[a-z0-9)"'”’]{2}.|\.\..|[A-Z]{2}[!?])["'”’)]?(?=[A-Z][a-z' ]|--)""")
"""Where reviews forget the space after a sentence."""

_APART = re.compile(
    r"(?<=[^\s.!?])(?<![^\w'][b-hj-zB-HJ-Z]) (?:\.|[!?]+)(?: (?:''|[)\]]))? (?=[^\s.!?,;:)\]'])"
)
"""The end of a sentence whose punctuation stands apart, as in text that was tokenized before; no initial."""

_CLOSED_APART = ("''", ")", "]")
"""What still belongs to the sentence before the space."""

_OTHER_SPACE = re.compile(r"[^\S ]")

_OPENING = "ʼ"
_CLOSING = "’"
_QUOTED = ('"', "''", "”", "’", "»")
"""After which a sentence may go on: `"why?" she said`."""
_UNPAIRED = (
    *((mark, _OPENING) for mark in "“‘«„"),
    (' "', f" {_OPENING}"),
    (" '", f" {_OPENING}"),
    ('("', f"({_OPENING}"),
    ('"', _CLOSING),
)
"""Quotation marks, and what stands for them while a paragraph is split."""


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Documents that lie end to end."""

    tokens: NDArray[np.unsignedinteger]
    """(tokens,) uint16 or uint32."""
    sentence_starts: NDArray[np.int32]
    """(sentences + 1,) where each sentence starts in `tokens`."""
    document_starts: NDArray[np.int32]
    """(documents + 1,) where each document starts in `sentence_starts`."""
    unknown_sentences: int
    """Sentences dropped because they are mostly [UNK]."""
    cut_sentences: int
    """Sentences cut because they are too long."""


def split_sentences(text: str) -> list[str]:
    """Sentences of a text whose paragraphs are separated by newlines; a sentence ends with its paragraph.

    sentencex does not split within quotation marks, and takes an apostrophe for one. Books are half dialogue,
    so it gets to see marks that it does not pair. Of 100 boundaries that splitters disagree about (Wikipedia,
    IMDB, books, news), 80 came out right at 35 MB/s; sentencex alone had 49, blingfire 64, nupunkt 60.
    """
    opened = _APART.sub(r"\g<0>\n", _GLUED.sub(r"\g<0> ", text))
    return list(itertools.chain.from_iterable(map(_split_paragraph, opened.split("\n"))))


def _split_paragraph(paragraph: str) -> list[str]:
    unpaired = paragraph
    if not paragraph.isascii():
        unpaired = _OTHER_SPACE.sub(" ", paragraph)  # a no-break one after a letter makes sentencex panic
    if unpaired[:1] in ("'", '"'):
        unpaired = _OPENING + unpaired[1:]
    for mark, replacement in _UNPAIRED:
        unpaired = unpaired.replace(mark, replacement)  # as long as before, so that the boundaries hold
    lowercase = paragraph.islower()
    sentences = []
    start = end = 0
    for sentence in sentencex.segment("en", unpaired):
        end += len(sentence)
        if _is_boundary(paragraph, end, lowercase=lowercase):
            sentences.append(paragraph[start:end])
            start = end
    return sentences


def _is_boundary(paragraph: str, end: int, *, lowercase: bool) -> bool:
    """Not in `"Why?" she said`, nor in `ASP.NET`. Text without capitals has sentences all the same."""
    if end == len(paragraph):
        return True
    before, after = paragraph[end - 1], paragraph[end]
    ending = paragraph[max(0, end - 8) : end].rstrip()  # not all before it: a paragraph may be a book
    if after.islower() and (not lowercase or ending.endswith(_QUOTED)):
        return False
    if paragraph.startswith(_CLOSED_APART, end):
        return False
    return before.isspace() or not before.isascii()


class SentenceEncoder:
    """Documents to token ids, by remembering the pieces of each word.

    BERT's pre-tokenizer splits at white space and around punctuation before anything else, so the pieces of a
    word do not depend on its neighbours. Running text repeats its words, and a look-up is several times faster
    than WordPiece. A spelled `[MASK]` comes out as the three words that it is in a corpus, not as that token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
        self._tokenizer = tokenizer
        self._continues = np.array([token.startswith("##") for token in tokenizer.vocab])  # (vocab_size,)
        self._by_word = tokenizer.ids(_PROBE) == [
            i for word in _WORD.findall(_PROBE) for i in tokenizer.ids(word)
        ]
        self._words: dict[str, bytes] = {}

    def encode(self, texts: Iterable[str], *, lines: bool = False) -> EncodedDocuments:
        """Sentences of each text, or its lines if they are sentences already.

        Sentences without a token and documents without a sentence are left out.
        """
        sentences = [text.split("\n") if lines else split_sentences(text) for text in texts]
        ids = self._ids(list(itertools.chain.from_iterable(sentences)))
        tokens = np.frombuffer(b"".join(ids), self.dtype)
        lengths = np.array([len(sentence) for sentence in ids], np.int64) // self.dtype.itemsize  # (sentences,)
        document = np.repeat(np.arange(len(sentences)), [len(part) for part in sentences])  # (sentences,)

        unknown = _sums(tokens == self._tokenizer.unk_id, lengths) > MAX_UNKNOWN * lengths
        kept = (lengths > 0) & ~unknown
        tokens, lengths, document = tokens[np.repeat(kept, lengths)], lengths[kept], document[kept]

        cut = lengths > MAX_SENTENCE_TOKENS
        lengths, document = self._cut(tokens, lengths, document, cut)
        per_document = np.bincount(document)
        return EncodedDocuments(
            tokens,
            _starts(lengths),
            _starts(per_document[per_document > 0]),
            unknown_sentences=int(unknown.sum()),
            cut_sentences=int(cut.sum()),
        )

    def _ids(self, sentences: Sequence[str]) -> list[bytes]:
        """Ids of each sentence as the bytes of an array."""
        if not self._by_word:
            return self._tokenize(sentences)
        ids: list[bytes] = []
        known = self._words.__getitem__
        for first in range(0, len(sentences), _BATCH):
            words = [_WORD.findall(sentence) for sentence in sentences[first : first + _BATCH]]
            self._learn(set().union(*words))
            ids += [b"".join(map(known, sentence)) for sentence in words]
        return ids

    def _learn(self, words: set[str]) -> None:
        if len(self._words) > CACHED_WORDS:
            self._words.clear()
        new = [word for word in words if word not in self._words]
        self._words.update(zip(new, self._tokenize(new), strict=True))

    def _tokenize(self, texts: Sequence[str]) -> list[bytes]:
        return [array(self.dtype.char, ids).tobytes() for ids in self._tokenizer.ids_batch(texts)]

    def _cut(
        self,
        tokens: NDArray[np.unsignedinteger],
        lengths: NDArray[np.int64],
        document: NDArray[np.int64],
        cut: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`lengths` and `document` with each sentence that is to be cut replaced by its parts."""
        starts = _starts(lengths)
        parts = np.ones_like(lengths)
        inserted = []
        for index in np.flatnonzero(cut):
            inserted.append(even_parts(self._continues[tokens[starts[index] : starts[index + 1]]]))
            parts[index] = len(inserted[-1])
        lengths = np.repeat(lengths, parts)
        lengths[np.repeat(cut, parts)] = list(itertools.chain.from_iterable(inserted))
        return lengths, np.repeat(document, parts)


def even_parts(continues: NDArray[np.bool_]) -> list[int]:
    """Lengths of about equal parts, none above `MAX_SENTENCE_TOKENS`, none from within a word that fits.

    Args:
        continues: (tokens,) whether a token continues the word before it.
    """
    total = len(continues)
    ends = [0]
    while ends[-1] < total:
        left = total - ends[-1]
        end = ends[-1] + -(-left // -(-left // MAX_SENTENCE_TOKENS))
        begins = np.flatnonzero(~continues[ends[-1] + 1 : end + 1])
        ends.append(ends[-1] + 1 + int(begins[-1]) if end < total and len(begins) else end)
    return [int(length) for length in np.diff(ends)]


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """(n,) lengths to (n + 1,) offsets."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _sums(flags: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(tokens,) flags to (sentences,) how many are set in each sentence."""
    before = np.concatenate([[0], np.cumsum(flags)])
    ends = np.cumsum(lengths)
    return before[ends] - before[ends - lengths]
