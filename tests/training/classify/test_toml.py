"""TOML that is written is read again."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from training.classify.toml import document

SCALARS = st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
TABLES = st.dictionaries(st.text(), SCALARS | st.lists(SCALARS), max_size=3)


@given(st.dictionaries(st.text(), SCALARS | st.lists(SCALARS) | TABLES | st.lists(TABLES, max_size=2), max_size=4))
def test_document_is_read_as_it_was_written(values: dict[str, Any]) -> None:
    assert tomllib.loads(document(values)) == values
