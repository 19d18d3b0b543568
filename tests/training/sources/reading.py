"""Sources of a few rows, written and read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from training.recipe import SourceConfig
from training.sources.documents import Document, documents

ROWS = [
    {"title": "One", "text": "First film.\nIt was good.", "label": "1"},
    {"title": "Two", "text": 'The "second", quoted.', "label": "0"},
    {"title": "Três", "text": "Das dritte – schön.", "label": "1"},
]
TEXTS = [row["text"] for row in ROWS]


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(delimiter: str, rows: list[dict[str, Any]] = ROWS) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def read(root: Path, path: str, **settings: Any) -> list[Document]:
    return list(documents(SourceConfig(path=path, **settings), root))


def texts(root: Path, path: str, **settings: Any) -> list[str]:
    return [document.text for document in read(root, path, **settings)]


WIKITEXT = """
 = Valkyria Chronicles =

 A game .

 = = Gameplay = =
 Players move .

 = Plain maple =
 A tree .
"""
TITLE, ARTICLES = "= [^=].* =", ["A game .\n\n = = Gameplay = =\n Players move .", "A tree ."]
