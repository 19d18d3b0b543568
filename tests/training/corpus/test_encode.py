"""Documents to the arrays of a shard."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from training.corpus.encode import EncodedShard, ShardEncoder, even_parts
from training.sources.documents import Document

LONGEST = 125
PIECES = [*"abcdeinst.,!?'\"", "é", "’", "“", "中", "film", "the", *(f"##{letter}" for letter in "abcdeinst")]
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *PIECES])
CASED = Tokenizer.from_vocab([*SPECIAL_TOKENS, *PIECES, "F", "##ilm"], lowercase=False)


ANYTHING = st.text(
    st.one_of(
        st.sampled_from("abcF filmé .,'!\t\xa0\x1c\u0301中"),
        st.characters(exclude_categories=["Cs"], exclude_characters="["),  # no spelled special tokens
    )
)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, CASED])
@given(texts=st.lists(ANYTHING))
def test_encode_text_gives_the_ids_of_the_tokenizer(tokenizer: Tokenizer, texts: list[str]) -> None:
    lines = [text.replace("\n", "") for text in texts]
    encoded = ShardEncoder(tokenizer).encode_text(lines, LONGEST, lines=True)
    ids = [tokenizer.ids(line) for line in lines]
    kept = [line for line in ids if line and line.count(tokenizer.unk_id) <= len(line) / 2]
    found = np.split(encoded.ids, encoded.sentence_starts[1:-1])
    assert [sentence.tolist() for sentence in found] == (kept or [[]])


def test_encode_text_follows_a_tokenizer_that_does_not_split_punctuation() -> None:
    settings = json.loads(TOKENIZER.to_json())
    settings["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    settings["model"]["vocab"] |= {"film.": 90, "##'s": 91}
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(settings)))
    texts = ["the film's the film.", "the film. is"]
    encoded = ShardEncoder(tokenizer).encode_text(texts, LONGEST, lines=True)
    assert encoded.ids.tolist() == [i for text in texts for i in tokenizer.ids(text)]
    assert 90 in encoded.ids


def test_encode_text_with_a_full_cache_gives_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.encode.CACHED_WORDS", 3)
    texts = ["the film, the cat.", "a bad net!", "the ant is bad", "the film"]
    encoded = ShardEncoder(TOKENIZER).encode_text(texts, LONGEST, lines=True)
    assert encoded.ids.tolist() == [i for text in texts for i in TOKENIZER.ids(text)]


def test_encode_text_reads_spelled_special_tokens_as_text() -> None:
    encoded = ShardEncoder(TOKENIZER).encode_text(["the [MASK] is [SEP] bad [CLS]. [PAD]"], LONGEST)
    assert set(encoded.ids.tolist()) & TOKENIZER.special_ids <= {TOKENIZER.unk_id}


def test_encode_text_leaves_out_documents_and_sentences_without_tokens() -> None:
    encoded = ShardEncoder(TOKENIZER).encode_text(["the film. \x00\n \n\na bat", "\u200b", "sad"], LONGEST)
    assert encoded.ids.tolist() == TOKENIZER.ids("the film. a bat sad")
    assert encoded.sentence_starts.tolist() == [0, 3, 7, 10]
    assert encoded.document_starts.tolist() == [0, 2, 3]


def test_encode_text_of_nothing_gives_empty_arrays() -> None:
    encoded = ShardEncoder(TOKENIZER).encode_text([], LONGEST)
    assert encoded.ids.tolist() == []
    assert encoded.sentence_starts.tolist() == [0]
    assert encoded.document_starts.tolist() == [0]


def test_encode_text_drops_and_counts_sentences_of_another_script() -> None:
    encoded = ShardEncoder(TOKENIZER).encode_text(["the film\nΑυτό είναι ξένο\nthe Αυτό", "Ξένο"], LONGEST, lines=True)
    assert encoded.counts.unknown_sentences == 2
    assert (encoded.counts.letters, encoded.counts.lost_letters, encoded.counts.long_word_letters) == (
        7 + 13 + 7 + 4,
        13 + 4 + 4,
        0,
    )
    assert encoded.document_starts.tolist() == [0, 2]
    assert encoded.sentence_starts.tolist() == [0, 2, 4]


@pytest.mark.parametrize("longest", [13, 125, 509])
def test_encode_text_cuts_a_long_sentence_between_words(longest: int) -> None:
    words = ["basic", "the", "tin"] * 200
    encoded = ShardEncoder(TOKENIZER).encode_text(["the film.", " ".join(words), "a bat"], longest)
    lengths = np.diff(encoded.sentence_starts)
    assert encoded.counts.cut_sentences == 1
    assert longest / 2 < lengths.max() <= longest
    assert encoded.document_starts.tolist() == [0, 1, len(lengths) - 1, len(lengths)]
    firsts = encoded.ids[encoded.sentence_starts[:-1]]
    assert not any(TOKENIZER.token(int(first)).startswith("##") for first in firsts)
    assert encoded.ids.tolist() == TOKENIZER.ids(f"the film. {' '.join(words)} a bat")


@given(st.lists(st.booleans(), min_size=1, max_size=1500))
def test_even_parts_cover_the_whole_sentence(continues: list[bool]) -> None:
    parts = even_parts(np.array(continues), LONGEST)
    assert sum(parts) == len(continues)
    assert 0 < min(parts) <= max(parts) <= LONGEST


def assert_equal(one: EncodedShard, other: EncodedShard) -> None:
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.sentence_starts, other.sentence_starts)
    assert np.array_equal(one.document_starts, other.document_starts)


def test_encode_text_depends_on_its_input_only() -> None:
    texts = ["the film is bad. a cat sat", "x " * 300, "the ant. the cab"]
    used = ShardEncoder(TOKENIZER)
    used.encode_text(["the cab ate a net", "Ξένο"], LONGEST)
    assert_equal(used.encode_text(texts, LONGEST), ShardEncoder(TOKENIZER).encode_text(texts, LONGEST))


def test_encode_labelled_keeps_every_column_and_document() -> None:
    documents = [
        Document(("the", "film is bad. a cat")),
        Document(("", "bat")),
        Document(("\u200b",)),
    ]
    encoded = ShardEncoder(TOKENIZER).encode_labelled(documents)
    assert encoded.document_starts.tolist() == [0, 2, 4, 5]
    lengths = [len(TOKENIZER.ids(field)) for document in documents for field in document.fields]
    assert np.diff(encoded.sentence_starts).tolist() == lengths
    assert encoded.ids.tolist() == TOKENIZER.ids("the film is bad. a cat bat")


def test_encode_labelled_counts_columns_of_another_script_and_keeps_them() -> None:
    documents = [Document(("the film", "Ξένο κείμενο")), Document(("Ξένο the film", "")), Document(("Ξένο",))]
    encoded = ShardEncoder(TOKENIZER).encode_labelled(documents)
    assert encoded.counts.unknown_sentences == 2
    assert (encoded.counts.letters, encoded.counts.lost_letters) == (7 + 11 + 11 + 4, 11 + 4 + 4)
    assert encoded.document_starts.tolist() == [0, 2, 4, 5]


def test_encode_text_counts_letters_of_words_that_are_too_long() -> None:
    encoded = ShardEncoder(TOKENIZER).encode_text([f"the film {'a' * 101} is {'a' * 100}"], LONGEST)
    assert (encoded.counts.letters, encoded.counts.lost_letters, encoded.counts.long_word_letters) == (210, 101, 101)
