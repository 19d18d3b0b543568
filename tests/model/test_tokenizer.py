from __future__ import annotations

import gc
import json
import random
import string
import tracemalloc
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from model import Tokenizer
from model.errors import (
    CheckpointError,
    ConfigError,
    EmptyTextError,
    InvalidTextError,
    TextError,
    TextTooLongError,
    UnknownTargetError,
)
from model.tokenizer import SPECIAL_TOKENS, kept_ends, truncate_longest_first

ALPHABET = [*"abcdefghijklmnopqrstuvwxyz0123456789", *".,!?'-()[]#…“”"]
WORDS = ["the", "movie", "was", "great", "wall", "##ing", "##s", "cafe", "naive", "中", "😀"]
VOCAB = list(dict.fromkeys([*SPECIAL_TOKENS, *ALPHABET, *(f"##{letter}" for letter in ALPHABET[:36]), *WORDS]))

TEXTS = [
    "The movie was great!",
    "Café naïve Ångström e\u0301\u0301 ﬁ ẞ İstanbul Ǆ",
    "日本語と中文 the 한국어 中",
    "😀 great 👩‍👩‍👧 \U0001f1e9\U0001f1ea 😀😀",
    "tabs\tand\r\nlines \x00 \x07 zero\u200bwidth soft\u00adhyphen \ufffd \u2028 \x85 end",
    "the [MASK] was [MASK]. a[MASK]b [mask] [ MASK ] ##ing #### [UNK] [PAD]",
    "[CLS] the [SEP] movie [SEP]",
    "x" * 100 + " " + "x" * 101,
    "don't can't a_b-c/d …“the”… ١٢٣ ½ ²",
    "(the) movie , was .great ! ?",
]


def transformers_bert(vocab: Sequence[str] = VOCAB, **options: Any) -> Any:
    return transformers.BertTokenizer(vocab={token: i for i, token in enumerate(vocab)}, **options)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Tokenizer.from_vocab(VOCAB)


# --- the same as transformers -------------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_ids_and_spans_equal_those_of_transformers(text: str, lowercase: bool) -> None:
    ours = Tokenizer.from_vocab(VOCAB, lowercase=lowercase).encode(text)
    theirs = transformers_bert(do_lower_case=lowercase)(text, return_offsets_mapping=True)
    assert ours.input_ids == theirs["input_ids"]
    assert ours.token_type_ids == theirs["token_type_ids"]
    assert ours.spans == theirs["offset_mapping"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_printable_characters_equal_those_of_transformers(lowercase: bool) -> None:
    letters = [chr(code) for code in range(32, 127)]
    vocab = list(dict.fromkeys([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]))
    ours, theirs = (
        Tokenizer.from_vocab(vocab, lowercase=lowercase),
        transformers_bert(vocab, do_lower_case=lowercase),
    )
    for text in (f"A{first}b{second}C {first} {second}" for first in letters for second in letters):
        encoding, expected = ours.encode(text), theirs(text, return_offsets_mapping=True)
        assert encoding.input_ids == expected["input_ids"], text
        assert encoding.spans == expected["offset_mapping"], text


@pytest.mark.parametrize("truncation", ["head", "tail", "head_tail"])
@pytest.mark.parametrize("text", TEXTS)
def test_encode_without_spans_changes_nothing_else(words: Tokenizer, text: str, truncation: str) -> None:
    for pair in (None, TEXTS[0]):
        given: dict[str, Any] = {"max_length": 12, "truncate": True, "truncation": truncation}
        whole = words.encode(text, pair, **given)
        assert words.encode(text, pair, spans=False, **given) == replace(whole, spans=[])


@pytest.mark.parametrize("lowercase", [True, False])
@given(
    text=st.text(
        st.one_of(
            st.sampled_from("abcF filmé .,'_#!\t\n\x00\x0b\x85\xa0\x1c\u0301\u200bİΣ中"),
            st.characters(exclude_categories=["Cs"], exclude_characters="["),  # no spelled special tokens
        )
    )
)
@settings(max_examples=300)
def test_encode_word_by_word_gives_the_ids_of_the_whole_text(text: str, lowercase: bool) -> None:
    tokenizer = Tokenizer.from_vocab(VOCAB, lowercase=lowercase)
    assert tokenizer._words is not None
    whole = tokenizer._tokenize_parts(text, [(0, len(text))], spans=False).ids.tolist()
    assert tokenizer._tokenize(text, spans=False).ids.tolist() == whole


def test_encode_text_of_many_new_words_equals_the_text_with_spans(words: Tokenizer) -> None:
    text = " ".join(f"the{number}é" for number in range(300))
    for _ in range(6):  # some more of its words are known each time
        assert words.encode(text, spans=False).input_ids == words.encode(text).input_ids


def test_tokenizer_is_in_no_cycle() -> None:
    """`gc.freeze` would keep a cycle in memory after a reload has replaced the tokenizer."""
    tokenizer = Tokenizer.from_vocab(VOCAB)
    tokenizer.encode("the movie", spans=False)
    gone = weakref.ref(tokenizer)
    gc.disable()
    try:
        del tokenizer
        assert gone() is None
    finally:
        gc.enable()


def test_encode_finds_an_added_token_in_a_plain_text(tmp_path: Path) -> None:
    Tokenizer.from_vocab(VOCAB).save(tmp_path)
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rust.add_tokens([AddedToken("Great-Wall", normalized=False)])
    rust.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("the Great-Wall").input_ids[2:-1] == [rust.token_to_id("Great-Wall")]
    assert len(loaded.encode("the great-wall")) == 6  # the, great, -, wall
    assert loaded.encode("the Great-Wall", spans=False).input_ids == loaded.encode("the Great-Wall").input_ids


def test_encode_pair_equals_that_of_transformers(words: Tokenizer) -> None:
    for first, second in pairwise(TEXTS):
        ours, theirs = words.encode(first, second), transformers_bert()(first, second)
        assert ours.input_ids == theirs["input_ids"]
        assert ours.token_type_ids == theirs["token_type_ids"]


def test_encode_truncates_the_longer_text_first_as_transformers_does(words: Tokenizer) -> None:
    theirs, rng = transformers_bert(), random.Random(0)
    for _ in range(400):
        first, second = " ".join(["the"] * rng.randint(1, 9)), " ".join(["movie"] * rng.randint(1, 9))
        limit = rng.randint(5, 20)
        expected = theirs(first, second, truncation="longest_first", max_length=limit)
        ours = words.encode(first, second, max_length=limit, truncate=True)
        assert ours.input_ids == expected["input_ids"]
        assert ours.token_type_ids == expected["token_type_ids"]
        single = theirs(first, truncation=True, max_length=3 + limit % 6)["input_ids"]
        assert words.encode(first, max_length=3 + limit % 6, truncate=True).input_ids == single


def test_encode_published_vocabulary_gives_the_published_ids(published_vocab: Path) -> None:
    ours = Tokenizer.load(published_vocab)
    assert (ours.vocab_size, ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id) == (30522, 0, 101, 102, 103)
    assert ours.encode("Hello, world!").input_ids == [101, 7592, 1010, 2088, 999, 102]
    theirs = transformers_bert(ours.vocab)
    for text in TEXTS:
        assert ours.encode(text).input_ids == theirs(text)["input_ids"]


# --- ids, types and spans -----------------------------------------------------------------------------------


def test_encode_text_is_between_cls_and_sep(words: Tokenizer) -> None:
    encoding = words.encode("The walls")
    assert [words.token(i) for i in encoding.input_ids] == ["[CLS]", "the", "wall", "##s", "[SEP]"]
    assert encoding.token_type_ids == [0] * 5
    assert encoding.spans == [(0, 0), (0, 3), (4, 8), (8, 9), (0, 0)]
    assert (len(encoding), encoding.truncated, encoding.masks_lost) == (5, False, 0)


def test_encode_second_text_has_token_type_1(words: Tokenizer) -> None:
    encoding = words.encode("The movie", "was great")
    tokens = [words.token(i) for i in encoding.input_ids]
    assert tokens == ["[CLS]", "the", "movie", "[SEP]", "was", "great", "[SEP]"]
    assert encoding.token_type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert encoding.spans[4:6] == [(0, 3), (4, 9)]  # in its own text


@given(text=st.text(max_size=40))
@settings(max_examples=200)
def test_encode_any_text_gives_tokens_or_a_text_error(words: Tokenizer, text: str) -> None:
    try:
        encoding = words.encode(text)
    except TextError:
        return
    assert encoding.input_ids[0] == words.cls_id
    assert encoding.input_ids[-1] == words.sep_id
    assert all(0 <= a <= b <= len(text) for a, b in encoding.spans)


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\x00", "\u200b", "\ufffd"])
def test_encode_text_without_tokens_is_an_error(words: Tokenizer, text: str) -> None:
    fault = "is empty" if not text.strip() else "has no characters that the model reads"
    with pytest.raises(EmptyTextError, match=f"the text {fault}"):
        words.encode(text)
    with pytest.raises(EmptyTextError, match=f"text_pair {fault}"):
        words.encode("the", text)
    with pytest.raises(EmptyTextError, match=f"text {fault}"):
        words.encode(text, "the")


LONE = "half a \ud83d smile"


def test_tokenizer_lone_surrogate_is_an_error(words: Tokenizer) -> None:
    for text in (LONE, LONE * 1000):  # short and long texts take different ways
        for spans in (True, False):
            with pytest.raises(InvalidTextError, match="surrogate"):
                words.encode(text, spans=spans)
        with pytest.raises(InvalidTextError, match="surrogate"):
            words.encode("the", text)
    with pytest.raises(InvalidTextError):
        words.ids(LONE)
    with pytest.raises(InvalidTextError):
        Tokenizer.train(["the", LONE], 100)


def test_encode_megabyte_of_one_word_is_one_unknown_token(words: Tokenizer) -> None:
    encoding = words.encode("a" * 1_000_000)
    assert encoding.input_ids == [words.cls_id, words.unk_id, words.sep_id]
    assert encoding.spans[1] == (0, 1_000_000)


@pytest.mark.parametrize("truncation", ["head", "tail", "head_tail"])
@pytest.mark.parametrize("masks", [50, 1000], ids=["within the character limit", "over it"])
def test_encode_cut_text_equals_the_whole_text_truncated(words: Tokenizer, truncation: Any, masks: int) -> None:
    text = "é walls [MASK] the " * masks
    whole = words.encode(text)
    cut = words.encode(text, max_length=42, truncate=True, truncation=truncation)
    head, tail = kept_ends(len(whole) - 2, 40, truncation)
    assert cut.spans[1:-1] == whole.spans[1 : 1 + head] + whole.spans[1 + tail : -1]
    assert cut.input_ids[1:-1] == whole.input_ids[1 : 1 + head] + whole.input_ids[1 + tail : -1]
    assert cut.masks_lost == masks - cut.input_ids.count(words.mask_id)
    assert cut.truncated


@pytest.mark.parametrize(
    ("truncation", "text"),
    [
        ("head", "the " * 625 + LONE),
        ("tail", LONE + " the" * 625),
        ("head_tail", "the " * 312 + LONE + " the" * 313),
    ],
)
def test_encode_does_not_tokenize_what_is_over_the_character_limit(
    words: Tokenizer, truncation: str, text: str
) -> None:
    for texts in ([text], [text, "the"], ["the", text]):
        encoding = words.encode(*texts, max_length=10, truncate=True, truncation=truncation)
        assert (len(encoding), encoding.truncated) == (10, True)


def test_encode_text_over_the_character_limit_is_cut_at_a_blank(words: Tokenizer) -> None:
    text = " " * 1240 + "movie movie movie" + " " * 1240
    for truncation, start in (("head", 1240), ("tail", 1252)):  # 1,250 characters end in the second word
        encoding = words.encode(text, max_length=5, truncate=True, truncation=truncation)
        assert encoding.spans[1:-1] == [(start, start + 5)]


def test_encode_text_over_the_character_limit_is_too_long(words: Tokenizer) -> None:
    with pytest.raises(TextTooLongError, match="has at least 627 tokens, the model takes at most 10 "):
        words.encode("the " * 1000, max_length=10)
    with pytest.raises(TextTooLongError, match="has 2503 characters, the model takes at most 2500;"):
        words.encode("the" + " " * 2500, max_length=10)
    assert len(words.encode("the" + " " * 2497, max_length=10)) == 3
    with pytest.raises(EmptyTextError):
        words.encode(" " * 2500 + "the", max_length=10, truncate=True)


def test_encode_very_long_text_takes_memory_for_what_it_keeps(words: Tokenizer) -> None:
    text = "the movie was great ! " * 20_000
    tracemalloc.start()
    words.encode(text, max_length=512, truncate=True)
    with suppress(TextTooLongError):
        words.encode(text, max_length=512)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000 * 48  # bytes: a list of the ids, but no spans, each of which has 64 and more


_LONG = {
    "sentences": "The movie was great! [MASK] walls, the café's  \t wall\n" * 1500,
    "no white space": "!?the[MASK]movie,walls." * 4000,
    "one word": "great" * 20_000,
    "a word at each end": "wall " * 3400 + "wall" * 9000 + " walls" * 3000,
    "other letters": "é語、the。walls\u0301 " * 9000,
    "control characters": "wal\x1cls \x00the\u00a0movie " * 4000,
    "brackets": "[[MASK]]was,[the" * 6000,
}


@pytest.mark.parametrize("text", _LONG.values(), ids=_LONG)
@pytest.mark.parametrize("spans", [True, False])
def test_encode_very_long_text_in_pieces_equals_the_whole(words: Tokenizer, text: str, spans: bool) -> None:
    kept = {"max_length": 512, "truncate": True, "truncation": "head_tail", "spans": spans}
    found = words.encode(text, **kept)
    assert found == reading_it_whole(words).encode(text, **kept)
    assert words.ids(text) == reading_it_whole(words).ids(text)


def test_encode_very_long_text_is_not_split_at_underscores_beside_whole_words(words: Tokenizer) -> None:
    rust = tokenizers.Tokenizer.from_str(words.to_json())
    rust.add_tokens([tokenizers.AddedToken("xyz", single_word=True)])
    tokenizer = Tokenizer(rust)
    text = "ab_xyz!! " * 9000
    assert tokenizer.ids(text) == rust.encode(text, add_special_tokens=False).ids


def reading_it_whole(tokenizer: Tokenizer) -> Tokenizer:
    whole = Tokenizer(tokenizer._rust)
    whole._in_pieces = False
    return whole


# --- too long -----------------------------------------------------------------------------------------------


def test_encode_too_long_error_has_both_lengths(words: Tokenizer) -> None:
    with pytest.raises(TextTooLongError, match="has 7 tokens, the model takes at most 6"):
        words.encode("the movie was great !", max_length=6)
    assert len(words.encode("the movie was great !", max_length=7)) == 7


def test_encode_tail_keeps_the_end_only(words: Tokenizer) -> None:
    encoding = words.encode("a b c d", "e f g h", max_length=7, truncate=True, truncation="tail")
    assert [words.token(i) for i in encoding.input_ids] == ["[CLS]", "c", "d", "[SEP]", "g", "h", "[SEP]"]


@pytest.mark.parametrize(("text_pair", "limit"), [(None, 2), (None, 0), ("b c", 4), ("b c", 3)])
def test_encode_without_room_for_a_token_is_an_error(words: Tokenizer, text_pair: str | None, limit: int) -> None:
    with pytest.raises(TextTooLongError):
        words.encode("a b c", text_pair, max_length=limit, truncate=True)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=2), st.integers(0, 60))
def test_truncate_longest_first_fills_the_budget(lengths: list[int], budget: int) -> None:
    kept = truncate_longest_first(lengths, budget)
    assert sum(kept) == min(sum(lengths), budget)
    assert all(0 <= keep <= length for keep, length in zip(kept, lengths, strict=True))
    if len(kept) == 2 and kept != lengths:
        cut = [keep for keep, length in zip(kept, lengths, strict=True) if keep < length]
        assert min(cut) >= max(kept) - 1  # what was cut is still as long as the other


@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from(["head", "tail", "head_tail"]))
def test_kept_ends_keep_the_given_number(length: int, keep: int, truncation: str) -> None:
    head, tail = kept_ends(length, keep, truncation)
    assert 0 <= head <= tail <= length
    assert head + length - tail == min(length, keep)
    assert length <= keep or {"head": tail == length, "tail": head == 0}.get(truncation, True)


@pytest.mark.parametrize("text", ["a", "a b c d"])
def test_truncation_of_another_name_is_an_error(words: Tokenizer, text: str) -> None:
    expected = "unsupported truncation 'left'; supported: head, head_tail, tail"
    with pytest.raises(ConfigError, match=expected):
        words.encode(text, max_length=5, truncate=True, truncation="left")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=expected):
        kept_ends(len(text), 3, "left")  # type: ignore[arg-type]


# --- words that a caller asks about -------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "token"), [("great", "great"), ("Great", "great"), ("CAFÉ", "cafe"), ("##s", "##s")])
def test_target_id_normalises_like_a_text(words: Tokenizer, word: str, token: str) -> None:
    assert words.token(words.target_id(word)) == token


def test_target_id_of_a_cased_model_keeps_case() -> None:
    cased = Tokenizer.from_vocab([*VOCAB, "Great"], lowercase=False)
    assert cased.token(cased.target_id("Great")) == "Great"
    with pytest.raises(UnknownTargetError):
        cased.target_id("GREAT")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("walls", r"splits into \['wall', '##s'\]"),
        ("the movie", r"splits into \['the', 'movie'\]"),
        ("語", "characters that are not in the vocabulary"),
        ("", "it has no tokens"),
        (" ", "it has no tokens"),
        ("\ud800", "it has no tokens"),
    ],
)
def test_target_id_of_no_single_token_is_an_error_with_the_reason(words: Tokenizer, word: str, reason: str) -> None:
    with pytest.raises(UnknownTargetError, match=reason) as caught:
        words.target_id(word)
    assert caught.value.target == word
    assert repr(word) in str(caught.value)


# --- tokens and back ----------------------------------------------------------------------------------------


def test_vocab_and_token_id_are_inverse(words: Tokenizer) -> None:
    assert words.vocab == VOCAB
    assert [words.token_id(token) for token in VOCAB] == list(range(words.vocab_size))
    assert words.token(10**6) == "[UNK]"
    with pytest.raises(KeyError):
        words.token_id("nowhere")


# --- files --------------------------------------------------------------------------------------------------


def odd_tokenizers() -> dict[str, Any]:
    entities = transformers_bert()
    entities.add_tokens(["great movie"])
    entities.add_tokens([AddedToken("<x>", lstrip=True, rstrip=True, normalized=False)], special_tokens=True)
    sequence = transformers_bert()._tokenizer
    parts = [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    sequence.normalizer = normalizers.Sequence(parts)
    named = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
    return {
        "plain": transformers_bert(),
        "cased": transformers_bert(do_lower_case=False),
        "lower-case with accents": transformers_bert(strip_accents=False),
        "cased without accents": transformers_bert(do_lower_case=False, strip_accents=True),
        "no Chinese": transformers_bert(tokenize_chinese_chars=False),
        "added tokens": entities,
        "greedy mask": transformers_bert(mask_token=AddedToken("[MASK]", lstrip=True)),
        "a gap in the ids": transformers_bert([*VOCAB, "gap", "last", "gap"]),
        "another normalizer": transformers.PreTrainedTokenizerFast(tokenizer_object=sequence, **named),
    }


@pytest.mark.parametrize("name", odd_tokenizers())
def test_load_and_save_any_bert_tokenizer_of_transformers(tmp_path: Path, name: str) -> None:
    theirs = odd_tokenizers()[name]
    theirs.save_pretrained(tmp_path / "theirs")
    ours = Tokenizer.load(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    (tmp_path / "ours" / "config.json").write_text('{"model_type": "bert"}')
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again.mask_token_id == ours.mask_id
    assert again.pad_token_id == ours.pad_id
    for text in [*TEXTS, "A great movie<x>the", "the <x> GREAT MOVIE"]:
        encoding = ours.encode(text)
        assert encoding.input_ids == theirs(text)["input_ids"] == again(text)["input_ids"]
        assert encoding.token_type_ids == again(text).get("token_type_ids", [0] * len(encoding))


def test_vocab_size_counts_up_to_the_last_id(tmp_path: Path) -> None:
    """An embedding must have a row for every id, though the vocabulary may have gaps."""
    odd_tokenizers()["a gap in the ids"].save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == len(VOCAB) + 3
    assert len(tokenizer.vocab) == tokenizer.vocab_size


def test_load_file_without_marked_special_tokens_finds_them(tmp_path: Path) -> None:
    values = json.loads(Tokenizer.from_vocab(VOCAB).to_json()) | {"added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the [MASK]").input_ids == Tokenizer.from_vocab(VOCAB).encode("the [MASK]").input_ids


def test_load_ignores_padding_and_truncation_of_the_file(tmp_path: Path) -> None:
    rust = tokenizers.Tokenizer.from_str(Tokenizer.from_vocab(VOCAB).to_json())
    rust.enable_padding(length=50)
    rust.enable_truncation(4)
    rust.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path).encode("the movie was great !")) == 7


def test_save_and_load_keep_the_tokenizer(tmp_path: Path, words: Tokenizer) -> None:
    words.save(tmp_path)
    assert Tokenizer.load(tmp_path).to_json() == words.to_json()
    assert Tokenizer.load(tmp_path / "tokenizer.json").to_json() == words.to_json()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", "{", "tokenizer.json: is not a usable WordPiece tokenizer"),
        ("vocab.txt", b"\xff", "vocab.txt: is not a usable WordPiece tokenizer"),
        ("vocab.txt", "a\nb\n", r"vocab.txt: .* the vocabulary has no \[PAD\], \[UNK\]"),
        ("vocab.txt", "", r"vocab.txt: .* the vocabulary has no \[PAD\], \[UNK\]"),
        ("nothing", "", "has neither tokenizer.json nor vocab.txt"),
    ],
)
def test_load_error_names_the_broken_file(tmp_path: Path, name: str, content: str | bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer.load(tmp_path)


# --- learning a vocabulary ----------------------------------------------------------------------------------

CORPUS = ["The walls were walking, and Walter was talking about the Café.", "中文 talking walls!"] * 3


def test_train_learns_a_vocabulary() -> None:
    tokenizer = Tokenizer.train(CORPUS, 60)
    assert tokenizer.vocab[:5] == list(SPECIAL_TOKENS)
    assert tokenizer.vocab_size <= 60
    assert any(token.startswith("##") and len(token) > 3 for token in tokenizer.vocab)
    assert tokenizer.unk_id not in tokenizer.ids("talking walls cafe 中")
    assert tokenizer.unk_id in tokenizer.ids("zzz")
    pieces = map(tokenizer.token, tokenizer.ids("Talking walls"))
    assert " ".join(pieces).replace(" ##", "") == "talking walls"


def test_train_numbers_letters_first_and_continuing_letters_only_where_used() -> None:
    tokenizer = Tokenizer.train(["ab, 中b"] * 2, 20)
    assert tokenizer.vocab == [*SPECIAL_TOKENS, ",", "a", "b", "中", "##b", "ab"]


def test_train_covers_a_script_of_thousands_of_letters() -> None:
    rng = random.Random(0)
    letters = [chr(0x4E00 + i) for i in range(3000)]
    weights = [1 / (i + 10) for i in range(3000)]  # the first thousand are 86% of a text
    texts = ["".join(rng.choices(letters, weights, k=100)) for _ in range(500)]
    large, small = (Tokenizer.train(texts, size) for size in (8192, 3000))
    unknown = [sum(t.ids(text).count(t.unk_id) for text in texts) / 50_000 for t in (large, small)]
    assert unknown[0] <= 0.001
    assert 0.01 < unknown[1] < 0.2
    assert sum(len(token) == 1 for token in small.vocab) == 1500


def test_train_without_lowercase_keeps_case() -> None:
    cased = Tokenizer.train(CORPUS, 200, lowercase=False)
    assert {"W", "É", "é"} & set(cased.vocab) == {"W", "é"}


def test_train_learns_nothing_from_words_that_are_unknown_in_any_case() -> None:
    text = "the film was good and the cast was good " * 50
    encoded = "".join(random.Random(0).choices(string.ascii_letters + string.digits, k=200_000))
    assert Tokenizer.train([f"{text}{encoded}, {text}"], 200).vocab == Tokenizer.train([f"{text}, {text}"], 200).vocab
    chinese = Tokenizer.train(["\u4e2d\u56fd" * 200], 200)
    assert chinese.unk_id not in chinese.ids("\u4e2d\u56fd" * 200), "each character is a word"


def test_train_is_deterministic() -> None:
    """Though the trainer goes through hash maps, and many pieces are equally frequent."""
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh  ", k=60)) for _ in range(50)]
    vocabularies = [Tokenizer.train(texts, 120).vocab for _ in range(5)]
    assert all(vocab == vocabularies[0] for vocab in vocabularies)
