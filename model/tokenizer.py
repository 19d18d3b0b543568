"""Text to token ids and back: WordPiece (Devlin et al. 2018, section 3; Wu et al. 2016) on `tokenizers`."""

from __future__ import annotations

import copy
import json
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer as _RustTokenizer
from tokenizers import normalizers, pre_tokenizers

from model import tokenizer_dir
from model.config import Truncation, check_truncation
from model.errors import (
    CheckpointError,
    EmptyTextError,
    InvalidTextError,
    PairError,
    TextTooLongError,
    UnknownTargetError,
)
from model.tokenizer_dir import MASK, SPECIAL_TOKENS, UNK
from model.word_ids import QUICK_CHARACTERS, WordIds

MAX_CHARACTERS_PER_TOKEN = 250
"""Longer texts than this number times the model's limit are cut before they are tokenized, which bounds the time. A
text has 4 to 5 characters per token, so nearly all longer ones are truncated anyway."""

_PIECE_CHARACTERS = 16_384
"""Longer texts are tokenized in pieces, because `tokenizers.Encoding` takes some 400 bytes per token."""

_CACHED_WORDS = 50_000
"""Words whose token ids are remembered: about 10 MB, at most 17."""

_PIECE_END = re.compile(r"[ \t\n\r!-/:-@\\^-`{-~\u3001\u3002\uff01\uff0c\uff1f]")
"""Characters after which neither a word nor a special token continues: a text may be split there."""


@dataclass(slots=True)
class Encoding:
    """Token ids of one text, `[CLS] a [SEP]`, or of a pair of texts, `[CLS] a [SEP] b [SEP]`."""

    ids: array[int]
    """int32"""
    second: int
    """Index of the first token of type 1: behind the first [SEP] of a pair; for a single text, its number of tokens."""
    spans: list[tuple[int, int]]
    """Start and end of each token in its own text, in characters; (0, 0) for [CLS] and [SEP]. Empty if
    `encode` was called with `spans=False`."""
    truncated: bool
    """Whether a text was cut."""
    masks_lost: int = 0
    """Number of [MASK] tokens that were truncated"""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def input_ids(self) -> list[int]:
        """`ids` as a list, for `PackedBatch.pack`."""
        return self.ids.tolist()

    @property
    def token_type_ids(self) -> list[int]:
        """The type of each token, 0 or 1, for `PackedBatch.pack`."""
        return [0] * self.second + [1] * (len(self) - self.second)


class _Half:
    """Tokens of one text, in 12 bytes each."""

    def __init__(self, ids: bytes = b"") -> None:
        self.ids = array("i", ids)
        self._starts, self._ends = array("i"), array("i")

    def add(self, piece: tokenizers.Encoding, at: int, spans: bool) -> None:
        """Append a piece that begins at the text's character `at`."""
        self.ids.extend(piece.ids)
        if spans:
            offsets = piece.offsets
            self._starts.extend(at + start for start, _ in offsets)
            self._ends.extend(at + end for _, end in offsets)

    def spans(self, which: Iterable[int]) -> list[tuple[int, int]]:
        """Start and end of these tokens."""
        return [(self._starts[i], self._ends[i]) for i in which]


class Tokenizer:
    """WordPiece with BERT's five special tokens, which a text may contain in full (`[MASK]`).

    `load`, `from_vocab` and `train` make one. Several threads may use it.

    Attributes:
        pad_id, unk_id, cls_id, sep_id, mask_id: the ids of the special tokens.
        special_ids: all five.
        segments: the model's `type_vocab_size`.
        vocab_size: the highest id plus 1.
    """

    def __init__(self, rust: _RustTokenizer, *, segments: int = 2) -> None:
        """Wrap a tokenizer of `tokenizers`.

        Args:
            rust: WordPiece with BERT's special tokens.
            segments: the model's `type_vocab_size`: with 1, pairs with two token types raise PairError.

        Raises:
            ValueError: the vocabulary lacks a special token, or the tokenizer places others.
        """
        tokenizer_dir.add_special_tokens(rust)
        self._rust = rust
        added = rust.get_added_tokens_decoder().values()
        self._is_plain = isinstance(rust.normalizer, normalizers.BertNormalizer) and isinstance(
            rust.pre_tokenizer, pre_tokenizers.BertPreTokenizer
        )
        """Whether texts are split as by BERT: the normalizer and the pre-tokenizer look at single words only."""
        self._in_pieces = self._is_plain and not any(t.single_word or _PIECE_END.search(t.content) for t in added)
        """Whether a text may be split at `_PIECE_END`. A token that must be a single word depends on the text before
        it, and `_` belongs to a word."""
        self._by_word = self._is_plain and all("[" in token.content for token in added)
        """Whether a text without "[" may be split into words."""
        # `WordIds` keeps a method of the tokenizer. It is a copy's method, because a reference back to `self` would be
        # a cycle. After `gc.freeze` it would never be collected, and would keep a replaced tokenizer in memory.
        self._words = copy.copy(self).word_ids("i", _CACHED_WORDS) if self._by_word else None
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(self.token_id, SPECIAL_TOKENS)
        self.special_ids = frozenset(map(self.token_id, SPECIAL_TOKENS))
        self.segments = segments
        self.second_type_id = tokenizer_dir.second_type_id(rust)
        """Token type of the second text of a pair: 0 if the tokenizer has no token types, else 1."""
        # The ids may have gaps. "" is an empty line of vocab.txt, which no text contains.
        self.vocab_size: int = max(i for token, i in rust.get_vocab(with_added_tokens=True).items() if token) + 1

    @classmethod
    def load(cls, path: Path | str, *, segments: int = 2) -> Tokenizer:
        """Load the tokenizer of a checkpoint directory.

        Args:
            path: the directory, or its `tokenizer.json` or `vocab.txt`.
            segments: the model's `type_vocab_size`.

        Raises:
            CheckpointError: a file is missing, invalid or unsupported, or contradicts another; the message names it.
        """
        file = tokenizer_dir.vocab_file(Path(path))
        try:
            return cls(tokenizer_dir.read_tokenizer(file), segments=segments)
        except BaseException as error:  # `tokenizers` raises bare Exception
            if isinstance(error, CheckpointError) or not (isinstance(error, Exception) or _is_panic(error)):
                raise
            raise CheckpointError(file, f"is not a usable WordPiece tokenizer: {error}") from None

    @classmethod
    def from_vocab(cls, vocab: Sequence[str], *, lowercase: bool = True) -> Tokenizer:
        """Make a BERT tokenizer from a vocabulary.

        Args:
            vocab: word pieces in the order of their ids, special tokens included.
            lowercase: whether texts are lower-cased, and accents stripped.

        Raises:
            ValueError: the vocabulary lacks a special token.
        """
        ids = {token: i for i, token in enumerate(vocab)}
        return cls(tokenizer_dir.bert_tokenizer(ids, {"do_lower_case": lowercase}))

    @classmethod
    def train(cls, texts: Sequence[str], vocab_size: int, *, lowercase: bool = True) -> Tokenizer:
        """Learn a vocabulary of word pieces (Wu et al. 2016). Equal texts give equal vocabularies.

        Args:
            texts: the texts to learn from.
            vocab_size: number of word pieces; few texts give fewer. The special tokens come first.
            lowercase: whether texts are lower-cased, and accents stripped.

        Raises:
            InvalidTextError: a text contains a lone surrogate.
        """
        settings = {"do_lower_case": lowercase}
        rust = tokenizer_dir.bert_tokenizer({}, settings)
        texts = [_LONG_WORD.sub(" ", text) for text in texts]
        # Letters get their ids here. The trainer numbers them in the order of a hash map, which differs from process to
        # process, and breaks ties between pieces by id.
        letters = _alphabet(rust, texts, max_letters=vocab_size // 2)
        initial = [letter for letter in letters if len(letter) == 1]
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=[*SPECIAL_TOKENS, *letters],
            initial_alphabet=initial,
            limit_alphabet=max(_MIN_ALPHABET, len(initial)),
            continuing_subword_prefix="##",
        )
        rust.train_from_iterator(texts, trainer)
        return cls(tokenizer_dir.bert_tokenizer(rust.get_vocab(), settings))

    def save(self, path: Path | str, max_length: int | None = None) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers` needs.

        Args:
            path: a directory that exists.
            max_length: number of tokens to which `transformers` truncates if its caller asks for truncation.

        Raises:
            OSError: a file cannot be written.
        """
        path = Path(path)
        (path / "tokenizer.json").write_text(self._rust.to_str(pretty=True), encoding="utf-8")
        settings = tokenizer_dir.settings_of(self._rust)
        if max_length is not None:
            settings["model_max_length"] = max_length
        (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @property
    def vocab(self) -> list[str]:
        """All tokens in the order of their ids; "" where no token has the id."""
        return [self._rust.id_to_token(i) or "" for i in range(self.vocab_size)]

    def to_json(self) -> str:
        """The tokenizer as one string. Tokenizers with equal strings tokenize in the same way."""
        return str(self._rust.to_str())

    def token_id(self, token: str) -> int:
        """Id of a token as spelled in the vocabulary. Raises KeyError if there is none."""
        found = self._rust.token_to_id(token)
        if found is None:
            raise KeyError(token)
        return int(found)

    def token(self, token_id: int) -> str:
        """Spelling of a token, with `##` if it continues a word; `[UNK]` for an unknown id."""
        return self._rust.id_to_token(token_id) or UNK

    def target_id(self, word: str) -> int:
        """Id of a target word, normalised like a text.

        Raises:
            UnknownTargetError: the word is not a single token of the vocabulary.
        """
        try:
            exact = self._rust.token_to_id(word) if word else None
        except UnicodeEncodeError:  # a lone surrogate
            raise UnknownTargetError(word, []) from None
        if exact is not None:
            return int(exact)
        pieces = self._tokenize_piece(word, spans=True)
        if len(pieces.ids) != 1 or pieces.ids[0] == self.unk_id:
            raise UnknownTargetError(word, pieces.tokens)
        return int(pieces.ids[0])

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        max_length: int | None = None,
        truncate: bool = False,
        truncation: Truncation = "head",
        spans: bool = True,
    ) -> Encoding:
        """Token ids of one text or of a pair, with special tokens.

        With `max_length`, a text is cut to `MAX_CHARACTERS_PER_TOKEN * max_length` characters before it is tokenized,
        as `truncation` says. A text that was cut is too long unless `truncate` is true.

        Args:
            text, text_pair: the texts.
            max_length: maximum number of tokens, special tokens included.
            truncate: cut a text that is too long. A pair loses tokens of the longer text first.
            truncation: part of each text to keep: "head", its beginning, "tail", its end, or "head_tail", both ends.
            spans: also compute `Encoding.spans`. Without them, a text takes a third of the time or less.

        Raises:
            EmptyTextError: a text has no tokens.
            InvalidTextError: a text contains a lone surrogate.
            PairError: a pair with two token types for a model with one.
            ConfigError: an unknown `truncation`.
            TextTooLongError: longer than `max_length` and `truncate` is false, or no room for any token.
        """
        check_truncation(truncation)
        if text_pair is not None and self.second_type_id >= self.segments:
            raise PairError("the model takes single texts, not pairs (its type_vocab_size is 1)")
        texts = [text] if text_pair is None else [text, text_pair]
        if max_length is not None and max(map(len, texts)) > MAX_CHARACTERS_PER_TOKEN * max_length:
            return self._encode_ends(texts, max_length, truncate, truncation, spans)
        halves = [self._tokenize(half, spans) for half in texts]
        _check_tokens(halves, texts)
        total = _total(halves)
        if max_length is not None and total > max_length and not (truncate and max_length > 2 * len(halves)):
            raise TextTooLongError(total, max_length)
        return self._assemble(halves, total, max_length, truncation, spans)

    @property
    def work(self) -> int:
        """Work on the words that were new to `encode` without spans, so far; see `word_ids.work_of`."""
        return 0 if self._words is None else self._words.work

    def is_quick(self, text: str) -> bool:
        """Whether `encode` without spans looks up the words of a text, in at most 3 ms."""
        return self._words is not None and "[" not in text and self._words.is_quick(text)

    def _encode_ends(
        self, texts: Sequence[str], max_length: int, truncate: bool, truncation: Truncation, spans: bool
    ) -> Encoding:
        """`encode` for texts of which at least one has too many characters to be tokenized whole."""
        most = MAX_CHARACTERS_PER_TOKEN * max_length
        kept = [_kept_characters(text, most, truncation) for text in texts]
        halves = [self._tokenize_parts(text, parts, spans) for text, parts in zip(texts, kept, strict=True)]
        if truncate and max_length > 2 * len(halves):
            _check_tokens(halves, texts)
            encoding = self._assemble(halves, _total(halves), max_length, truncation, spans)
            masks_cut = sum(
                text.count(MASK) - sum(text.count(MASK, start, stop) for start, stop in parts)
                for text, parts in zip(texts, kept, strict=True)
            )
            return replace(encoding, truncated=True, masks_lost=encoding.masks_lost + masks_cut)
        if (total := _total(halves)) > max_length:
            raise TextTooLongError(total, max_length, at_least=True)
        raise TextTooLongError(max(map(len, texts)), most, unit="characters")

    def _tokenize(self, text: str, spans: bool) -> _Half:
        """Tokens without special tokens."""
        if self._words is not None and not spans and "[" not in text:
            ids = self._words.of_familiar_text(text)
            if ids is not None:
                return _Half(ids)
        return self._tokenize_parts(text, [(0, len(text))], spans)

    def _tokenize_parts(self, text: str, parts: Sequence[tuple[int, int]], spans: bool) -> _Half:
        """Tokens of the parts of a text with these starts and stops; long parts are tokenized in pieces."""
        whole = _Half()
        for start, stop in parts:
            while start < stop:
                found = _PIECE_END.search(text, start + _PIECE_CHARACTERS, stop) if self._in_pieces else None
                end = found.end() if found else stop
                whole.add(self._tokenize_piece(text[start:end], spans), start, spans)
                start = end
        return whole

    def _tokenize_piece(self, text: str, spans: bool) -> tokenizers.Encoding:
        try:
            if not spans:
                return self._rust.encode_batch_fast([text], add_special_tokens=False)[0]
            if len(text) > QUICK_CHARACTERS:  # `encode` is faster, but holds the interpreter lock
                return self._rust.encode_batch([text], add_special_tokens=False)[0]
            return self._rust.encode(text, add_special_tokens=False)
        except TypeError:
            raise InvalidTextError from None
        except BaseException as error:
            if _is_panic(error):
                raise RuntimeError(f"the tokenizer of this checkpoint fails: {error}") from None
            raise

    def _assemble(
        self, halves: Sequence[_Half], total: int, max_length: int | None, truncation: Truncation, with_spans: bool
    ) -> Encoding:
        lengths = keeps = [len(half.ids) for half in halves]
        if max_length is not None and total > max_length:
            keeps = truncate_longest_first(lengths, max_length - len(halves) - 1)
        ids, spans, second, masks_lost = array("i", (self.cls_id,)), [(0, 0)], 0, 0
        for half, length, keep in zip(halves, lengths, keeps, strict=True):
            if keep == length:
                ids += half.ids
            else:
                head, tail = kept_ends(length, keep, truncation)
                kept = half.ids[:head] + half.ids[tail:]
                ids += kept
                masks_lost += half.ids.count(self.mask_id) - kept.count(self.mask_id)
            if with_spans:
                which = range(length) if keep == length else chain(range(head), range(tail, length))
                spans += [*half.spans(which), (0, 0)]
            ids.append(self.sep_id)
            second = second or len(ids)
        has_types = len(halves) > 1 and self.second_type_id
        second = second if has_types else len(ids)
        return Encoding(ids, second, spans if with_spans else [], keeps != lengths, masks_lost)

    def ids(self, text: str) -> list[int]:
        """Ids of a whole text, of any length, without [CLS] and [SEP].

        Raises:
            InvalidTextError: the text contains a lone surrogate.
        """
        if self._by_word and text.isascii() and text.isalnum():  # one word
            word = text.lower() if self._rust.normalizer.lowercase else text
            return [token.id for token in self._rust.model.tokenize(word)]
        return self._tokenize_parts(text, [(0, len(text))], spans=False).ids.tolist()

    def unknown_words(self, text: str) -> list[str]:
        """Parts of a text that become [UNK], as spelled there. Raises InvalidTextError."""
        half = self._tokenize_parts(text, [(0, len(text))], spans=True)
        which = (i for i, token_id in enumerate(half.ids) if token_id == self.unk_id)
        return [text[start:end] for start, end in half.spans(which)]

    def word_ids(self, typecode: str, limit: int) -> WordIds | None:
        """A store of token ids by word, for texts in which `[UNK]` and single words are the only added tokens.

        Args:
            typecode, limit: see `WordIds`.

        Returns:
            None if this tokenizer does not split texts as BERT does.
        """
        return WordIds(self.ids, typecode, limit) if self._is_plain else None


def truncate_longest_first(lengths: Sequence[int], budget: int) -> list[int]:
    """Number of tokens of one or two texts to keep within a budget, taking from the longer text first.

    The second of two equal texts keeps the odd token, as in `transformers`.

    >>> truncate_longest_first([10, 4], 9)
    [5, 4]
    """
    if sum(lengths) <= budget:
        return list(lengths)
    if len(lengths) == 1:
        return [max(budget, 0)]
    first, second = lengths
    short = min(first, second, budget // 2)
    return [budget - short, short] if first > second else [short, budget - short]


def kept_ends(length: int, keep: int, truncation: Truncation) -> tuple[int, int]:
    """The tokens of a text to keep: those before the first returned index, and those from the second on.

    "head" keeps the beginning, "tail" the end, "head_tail" half of each, because reviews conclude at the end (Sun et
    al. 2019, section 5.3.1).

    >>> kept_ends(5, 3, "head"), kept_ends(5, 3, "head_tail")
    ((3, 5), (2, 4))
    """
    check_truncation(truncation)
    if length <= keep:
        return length, length
    tail = {"head": 0, "head_tail": keep // 2, "tail": keep}[truncation]
    return keep - tail, length - tail


def _kept_characters(text: str, most: int, truncation: Truncation) -> list[tuple[int, int]]:
    """Starts and stops of the parts of a text to keep: at most `most` characters, cut at a blank if one is near."""
    head, tail = kept_ends(len(text), most, truncation)
    if head == len(text):
        return [(0, head)]
    blank = text.rfind(" ", max(head - tokenizer_dir.MAX_WORD, 0), head)
    head = head if blank < 0 else blank
    return [(0, head), (max(tail, text.find(" ", tail, tail + tokenizer_dir.MAX_WORD)), len(text))]


def _check_tokens(halves: Sequence[_Half], texts: Sequence[str]) -> None:
    """Raise EmptyTextError if a text has no tokens."""
    for half, text, name in zip(halves, texts, ("text", "text_pair"), strict=False):
        if not half.ids:
            raise EmptyTextError(text, name if len(texts) > 1 else None)


def _total(halves: Sequence[_Half]) -> int:
    """Tokens with [CLS] and [SEP]."""
    return sum(len(half.ids) + 1 for half in halves) + 1


_LONG_WORD = re.compile(rf"(?<![^\W_])[^\W_\u3400-\u9fff\uf900-\ufaff]{{{tokenizer_dir.MAX_WORD + 1},}}")
"""A word that is [UNK] with any vocabulary, such as encoded bytes. Each Chinese character is a separate word."""
_MIN_ALPHABET = 1000


def _is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of `tokenizers`, whose class can only be recognised by its name."""
    return type(error).__name__ == "PanicException"


def _alphabet(rust: _RustTokenizer, texts: Iterable[str], max_letters: int) -> list[str]:
    """The most frequent letters; then, with `##`, those of them that continue a word. Both parts are sorted.

    There are `_MIN_ALPHABET` letters, or up to `max_letters` if it takes more to cover 99.95% of the text: Chinese has
    thousands. All other letters become [UNK].
    """
    pairs: Counter[tuple[str, str]] = Counter()
    try:
        for text in texts:
            normal = f" {rust.normalizer.normalize_str(text)}"
            pairs.update(pairwise(normal))
    except UnicodeEncodeError:
        raise InvalidTextError from None
    counts: Counter[str] = Counter()
    for (_, letter), count in pairs.items():
        counts[letter] += 0 if letter.isspace() else count
    frequent = sorted(+counts, key=lambda letter: (-counts[letter], letter))
    covered = list(accumulate(counts[letter] for letter in frequent))
    needed = bisect_left(covered, 0.9995 * sum(counts.values())) + 1
    frequent = frequent[: max(_MIN_ALPHABET, min(needed, max_letters))]
    split = rust.pre_tokenizer.pre_tokenize_str
    joined = {second for first, second in pairs if split(first + second)[:1] == [(first + second, (0, 2))]}
    return [*sorted(frequent), *(f"##{letter}" for letter in sorted(joined.intersection(frequent)))]
