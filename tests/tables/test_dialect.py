"""How a table is written, as it is stated."""

from __future__ import annotations

from typing import Any

import pytest

from bert_tables.dialect import Dialect


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"delimiter": ";;"}, "delimiter is ';;': give one character"),
        ({"delimiter": ""}, "delimiter is '': give one character"),
        ({"delimiter": "\n"}, "give one character"),
        ({"quote": "''"}, "quote is \"''\": give one character"),
        ({"escape": "\\\\"}, "escape is "),
        ({"delimiter": ";", "quote": ";"}, "must be three different characters"),
        ({"quote": '"', "escape": '"'}, "must be three different characters"),
        ({"header": ()}, "header must be true, false, or the names"),
        ({"header": ("a", "a")}, "header must be true, false, or the names"),
        ({"encoding": "utf-9"}, "encoding 'utf-9' is unknown"),
        ({"encoding": "idna"}, "encoding 'idna' is unknown"),
        ({"encoding": "hex"}, "encoding 'hex' is unknown"),
    ],
)
def test_dialect_that_cannot_be_is_an_error(stated: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        Dialect(**stated)


def test_dialect_tab_can_be_spelled() -> None:
    assert Dialect(delimiter="\\t") == Dialect(delimiter="tab") == Dialect(delimiter="\t")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "windows-1252", "shift-jis", "gb18030"])
def test_dialect_encoding_of_text_is_taken(encoding: str) -> None:
    assert Dialect(encoding=encoding).encoding == encoding
