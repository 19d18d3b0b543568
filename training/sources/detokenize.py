"""The same text in the spellings of different writers. A tokenizer for BERT finds other words in each: who
learns negation from `is n't` alone does not know it in `isn't` or `isn’t`.

- Data sets such as SST-2 stand in the tokens of the Penn Treebank (Marcus et al. 1993): `it is n't ``fine''`.
- People type `it isn't "fine"`.
- Phones and word processors make `it isn’t “fine”` of that.
"""

from __future__ import annotations

import functools
import re
from typing import Any

_WORDS = re.compile(r"\w+|[^\w\s]")
"""What that tokenizer takes for words, about: white space beside a mark makes no difference to it"""
_OPENING = re.compile(r"(?<![^\s(\[{—-])['\"]")
"""Quotation marks that begin a word"""
_CLOSING = str.maketrans("'\"", "’”")


@functools.cache
def _detokenizer() -> Any:
    from nltk.tokenize.treebank import TreebankWordDetokenizer  # a second to import

    return TreebankWordDetokenizer()


def joined(text: str) -> str:
    r"""A text in the treebank's tokens as people type it, line by line.

    >>> joined("it is n't `` fine '' , i 'm gon na say")
    'it isn\'t "fine", i\'m gonna say'
    """
    return "\n".join(_detokenizer().detokenize(line.split()) for line in text.split("\n"))


def differ(text: str, other: str) -> bool:
    """Whether a tokenizer for BERT finds other words in two spellings.

    >>> differ("it 's fine .", "it's fine."), differ("it is n't", "it isn't")
    (False, True)
    """
    return _WORDS.findall(text) != _WORDS.findall(other)


def typographic(text: str) -> str:
    r"""A text with the marks that phones and word processors put for straight ones.

    >>> typographic('it isn\'t "fine"')
    'it isn’t “fine”'
    """
    return _OPENING.sub(lambda mark: "‘" if mark[0] == "'" else "“", text).translate(_CLOSING)
