"""Sentence boundaries."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.corpus.sentences import split_sentences


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
def test_split_sentences_ends_them_where_a_reader_does(text: str, sentences: list[str]) -> None:
    assert sentences_of(text) == sentences


@given(st.text(st.one_of(st.sampled_from("aBC .!?\"'“”‘’()\n…\u00a0"), st.characters(exclude_categories=["Cs"]))))
def test_split_sentences_loses_only_white_space(text: str) -> None:
    assert re.sub(r"\s", "", "".join(split_sentences(text))) == re.sub(r"\s", "", text)
