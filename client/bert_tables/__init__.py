"""Reads tables: CSV, TSV, JSON lines, Parquet and plain lines, compressed or not."""

from __future__ import annotations

from bert_tables.cells import cell_text
from bert_tables.dialect import LINE, Dialect
from bert_tables.errors import TableError
from bert_tables.header import find_column
from bert_tables.missing import MissingWords
from bert_tables.reader import FORMATS, Row, Table, format_of, open_table

__all__ = [
    "FORMATS",
    "LINE",
    "Dialect",
    "MissingWords",
    "Row",
    "Table",
    "TableError",
    "cell_text",
    "find_column",
    "format_of",
    "open_table",
]
