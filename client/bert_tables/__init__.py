"""Tables as people have them: CSV, TSV, JSON lines, Parquet and plain lines, compressed or not."""

from __future__ import annotations

from bert_tables.dialect import Dialect
from bert_tables.errors import TableError
from bert_tables.reader import FORMATS, LINE, Row, Table, format_of, open_table

__all__ = ["FORMATS", "LINE", "Dialect", "Row", "Table", "TableError", "format_of", "open_table"]
