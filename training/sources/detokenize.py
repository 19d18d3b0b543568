"""Changes the spelling of texts: to read tokenized data sets, and to vary training text.

A tokenizer for BERT finds other words in each spelling. A model that learns negation only from `is n't` does not
recognise it in `isn't` or `isn’t`.

- Data sets such as SST-2 are in the tokens of the Penn Treebank (Marcus et al. 1993): `it is n't ``fine''`.
- People type `it isn't "fine"`.
- Phones and word processors turn that into `it isn’t “fine”`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

_WORDS = re.compile(r"\w+|[^\w\s]")
"""Roughly the words of a tokenizer for BERT, which ignores white space beside punctuation."""
_OPENING = re.compile(r"(?<![^\s(\[{—-])['\"]")
"""Quotation marks that begin a word."""
_CLOSING = str.maketrans("'\"", "’”")


def joined(text: str) -> str:
    r"""A text in the treebank's tokens as people type it, line by line.

    >>> joined("it is n't `` fine '' , i 'm gon na say")
    'it isn\'t "fine", i\'m gonna say'
    """
    from nltk.tokenize.treebank import TreebankWordDetokenizer  # a second to import

    return "\n".join(TreebankWordDetokenizer().detokenize(line.split()) for line in text.split("\n"))


def differ(text: str, other: str) -> bool:
    """Whether a tokenizer for BERT finds other words in two spellings.

    >>> differ("it 's fine .", "it's fine."), differ("it is n't", "it isn't")
    (False, True)
    """
    return _WORDS.findall(text) != _WORDS.findall(other)


def typographic(text: str) -> str:
    r"""A text with the marks that phones and word processors use in place of straight ones.

    >>> typographic('it isn\'t "fine"')
    'it isn’t “fine”'
    """
    return _OPENING.sub(lambda mark: "‘" if mark[0] == "'" else "“", text).translate(_CLOSING)


_NEGATED = {
    f"{verb} not": f"{verb}n't"
    for verb in (
        *("do", "does", "did", "is", "are", "was", "were", "has", "have", "had"),
        *("would", "should", "could", "must", "need"),
    )
} | {"cannot": "can't", "can not": "can't", "will not": "won't"}
_EXPANDED = {short: long for long, short in _NEGATED.items() if long != "can not"} | {
    f"{pronoun}'{short}": f"{pronoun} {long}"
    for short, long, pronouns in (
        ("m", "am", ("i",)),
        ("re", "are", ("you", "we", "they")),
        ("ve", "have", ("i", "you", "we", "they")),
        ("ll", "will", ("i", "you", "we", "they", "he", "she", "it")),
    )
    for pronoun in pronouns
}
"""Contractions by their long forms, without `it's` and `he'd`, which may be "it has" and "he would"."""
_CONTRACTIBLE = re.compile(
    r"\b(?:" + "|".join(_NEGATED) + r")\b"
    # not "don't you": its long form is "do you not"
    r"|\b(?:" + "|".join(short.replace("'", "['’]") for short in _EXPANDED) + r")\b"
    r"(?!\s+(?:i|you|he|she|it|we|they|this|that|these|those|there)\b)",
    re.IGNORECASE,
)
_SENTENCE_START = re.compile(r"(?:^|[.!?][\"”’')\]]*\s+|\n)\W*?(\w)")


def contractions(text: str, generator: np.random.Generator) -> str:
    """A text in which contractions and their long forms (`don't`, `do not`) change into each other, each with
    probability 1/2.

    >>> contractions("I do not like it, and I won't.", np.random.default_rng(1))
    "I don't like it, and I will not."
    """

    def change(found: re.Match[str]) -> str:
        if generator.random() < 0.5:
            return found[0]
        known = found[0].lower().replace("’", "'")
        return _in_case_of(found[0], _NEGATED.get(known) or _EXPANDED[known])

    return _CONTRACTIBLE.sub(change, text)


def capitals(text: str, generator: np.random.Generator) -> str:
    """A text in capitals, in lower case, or with a capital at the beginning of each sentence only.

    >>> {capitals("It was Good. REALLY.", np.random.default_rng(seed)) for seed in range(40)} == {
    ...     "IT WAS GOOD. REALLY.", "it was good. really.", "It was good. Really."}
    True
    """
    ways: tuple[Callable[[str], str], ...] = (str.upper, str.lower, _sentence_case)
    return ways[generator.integers(len(ways))](text)


def _sentence_case(text: str) -> str:
    lower = re.sub(r"\bi\b", "I", text.lower())
    return _SENTENCE_START.sub(lambda found: found[0][:-1] + found[1].upper(), lower)


def _in_case_of(pattern: str, text: str) -> str:
    if pattern.isupper() and len(pattern) > 1:
        return text.upper()
    if pattern[0].isupper():
        return text[0].upper() + text[1:]
    return text
