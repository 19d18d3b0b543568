"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / name for name in ("app", "client/bert_client", "client/bert_tables", "model", "training")]
MODULES = [
    ".".join(file.relative_to(package.parent).with_suffix("").parts)
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
    if "    >>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
