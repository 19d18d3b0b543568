"""Sentence boundaries, and ids that are the tokenizer's own."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from training.corpus.sentences import MAX_SENTENCE_TOKENS, SentenceEncoder, even_parts, split_sentences

PIECES = [*"abcdeinst.,!?'\"", "é", "’", "“", "中", "film", "the", *(f"##{letter}" for letter in "abcdeinst")]
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *PIECES])
CASED = Tokenizer.from_vocab([*SPECIAL_TOKENS, *PIECES, "F", "##ilm"], lowercase=False)


def sentences_of(text: str) -> list[str]:
    return [sentence.strip() for sentence in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It was good. I liked it! Did you? Yes.", ["It was good.", "I liked it!", "Did you?", "Yes."]),
        ("Mr. Smith met Dr. Jones at 5.30 p.m. today.", ["Mr. Smith met Dr. Jones at 5.30 p.m. today."]),
        ("A paragraph without an end\nAnother one.", ["A paragraph without an end", "Another one."]),
        (
            "Great fun.I laughed (a lot).The end!It rocks.",
            ["Great fun.", "I laughed (a lot).", "The end!", "It rocks."],
        ),
        ("Well... it was fine. So...", ["Well... it was fine.", "So..."]),
        ("“Go home. It is late,” she said. He left.", ["“Go home.", "It is late,” she said.", "He left."]),
        ('"Why?" she asked. "I know. I was there."', ['"Why?" she asked.', '"I know.', 'I was there."']),
        ("I don’t know. It’s late. We can’t.", ["I don’t know.", "It’s late.", "We can’t."]),
        ("'Tis so. 'Twas so.", ["'Tis so.", "'Twas so."]),
        (
            "it broke . do n't buy it ! `` never again , '' he said . ( really ? ) yes , in the u.s. and j . k",
            [
                "it broke .",
                "do n't buy it !",
                "`` never again , '' he said .",
                "( really ? )",
                "yes , in the u.s. and j . k",
            ],
        ),
        ("he said `` go away . '' she did not .", ["he said `` go away . ''", "she did not ."]),
        ("It was ... odd . . . and so on.", ["It was ... odd . . . and so on."]),
        (
            'it was good. i liked it! mr. smith, too, e.g. once. "why?" she asked. no reason.',
            ["it was good.", "i liked it!", "mr. smith, too, e.g. once.", '"why?" she asked.', "no reason."],
        ),
        (
            "We took vitamin C\u00a0. It helped. U.S.A\u3000.",
            ["We took vitamin C\u00a0.", "It helped.", "U.S.A\u3000."],
        ),
        (
            "Use ASP.NET and v2.0 of Node.js at example.com now.",
            ["Use ASP.NET and v2.0 of Node.js at example.com now."],
        ),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, sentences: list[str]) -> None:
    assert sentences_of(text) == sentences


@given(
    st.text(st.one_of(st.sampled_from("aBC .!?\"'“”‘’()\n…\u00a0"), st.characters(exclude_categories=["Cs"])))
)
def test_splitting_loses_nothing_but_white_space(text: str) -> None:
    assert re.sub(r"\s", "", "".join(split_sentences(text))) == re.sub(r"\s", "", text)


ANYTHING = st.text(
    st.one_of(
        st.sampled_from("abcF filmé .,'!\t\xa0\x1c\u0301中"),
        st.characters(exclude_categories=["Cs"], exclude_characters="["),  # no spelled special tokens
    )
)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, CASED])
@given(texts=st.lists(ANYTHING))
def test_ids_are_those_of_the_tokenizer(tokenizer: Tokenizer, texts: list[str]) -> None:
    lines = [text.replace("\n", "") for text in texts]
    encoded = SentenceEncoder(tokenizer).encode(lines, lines=True)
    ids = [tokenizer.ids(line) for line in lines]
    kept = [line for line in ids if line and line.count(tokenizer.unk_id) <= len(line) / 2]
    found = np.split(encoded.tokens, encoded.sentence_starts[1:-1])
    assert [sentence.tolist() for sentence in found] == (kept or [[]])


def test_ids_are_those_of_a_tokenizer_that_does_not_split_punctuation() -> None:
    settings = json.loads(TOKENIZER.to_json())
    settings["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    settings["model"]["vocab"] |= {"film.": 90, "##'s": 91}
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(settings)))
    texts = ["the film's the film.", "the film. is"]
    encoded = SentenceEncoder(tokenizer).encode(texts, lines=True)
    assert encoded.tokens.tolist() == [i for text in texts for i in tokenizer.ids(text)]
    assert 90 in encoded.tokens


def test_remembered_words_may_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.sentences.CACHED_WORDS", 3)
    monkeypatch.setattr("training.corpus.sentences._BATCH", 2)
    texts = ["the film, the cat.", "a bad net!", "the ant is bad", "the film"]
    encoded = SentenceEncoder(TOKENIZER).encode(texts, lines=True)
    assert encoded.tokens.tolist() == [i for text in texts for i in TOKENIZER.ids(text)]


def test_spelled_special_tokens_are_ordinary_text() -> None:
    encoded = SentenceEncoder(TOKENIZER).encode(["the [MASK] is [SEP] bad [CLS]. [PAD]"])
    assert set(encoded.tokens.tolist()) & TOKENIZER.special_ids <= {TOKENIZER.unk_id}


def test_documents_and_sentences_without_tokens_are_left_out() -> None:
    encoded = SentenceEncoder(TOKENIZER).encode(["the film. \x00\n \n\na bat", "\u200b", "sad"])
    assert encoded.tokens.tolist() == TOKENIZER.ids("the film. a bat sad")
    assert encoded.sentence_starts.tolist() == [0, 3, 7, 10]
    assert encoded.document_starts.tolist() == [0, 2, 3]


def test_nothing_gives_empty_arrays() -> None:
    encoded = SentenceEncoder(TOKENIZER).encode([])
    assert encoded.tokens.tolist() == []
    assert encoded.sentence_starts.tolist() == [0]
    assert encoded.document_starts.tolist() == [0]


def test_sentences_of_another_script_are_dropped_and_counted() -> None:
    encoded = SentenceEncoder(TOKENIZER).encode(["the film\nΑυτό είναι ξένο\nthe Αυτό", "Ξένο"], lines=True)
    assert encoded.unknown_sentences == 2
    assert encoded.document_starts.tolist() == [0, 2]
    assert encoded.sentence_starts.tolist() == [0, 2, 4]


def test_a_sentence_without_end_is_cut_between_words() -> None:
    words = ["basic", "the", "tin"] * 200
    encoded = SentenceEncoder(TOKENIZER).encode(["the film.", " ".join(words), "a bat"])
    lengths = np.diff(encoded.sentence_starts)
    assert encoded.cut_sentences == 1
    assert lengths.max() <= MAX_SENTENCE_TOKENS < len(encoded.tokens)
    assert encoded.document_starts.tolist() == [0, 1, len(lengths) - 1, len(lengths)]
    firsts = encoded.tokens[encoded.sentence_starts[:-1]]
    assert not any(TOKENIZER.token(int(first)).startswith("##") for first in firsts)
    assert encoded.tokens.tolist() == TOKENIZER.ids(f"the film. {' '.join(words)} a bat")


@given(st.lists(st.booleans(), min_size=1, max_size=1500))
def test_parts_are_even_and_cover_everything(continues: list[bool]) -> None:
    parts = even_parts(np.array(continues))
    assert sum(parts) == len(continues)
    assert 0 < min(parts) <= max(parts) <= MAX_SENTENCE_TOKENS


def test_ids_have_16_bits_for_a_small_vocabulary_and_32_for_a_large_one() -> None:
    large = Tokenizer.from_vocab([*SPECIAL_TOKENS, *(f"w{i}" for i in range(70_000)), "the"])
    assert SentenceEncoder(TOKENIZER).encode(["the"]).tokens.dtype == np.uint16
    encoded = SentenceEncoder(large).encode(["the w69999"])
    assert encoded.tokens.dtype == np.uint32
    assert encoded.tokens.tolist() == [large.token_id("the"), large.token_id("w69999")]
