"""Renews the answers that docs/ prints: `python -m tests.docs.answers`, after a change of the weights.

It starts the service with the shipped weights, as the tests do, and writes what it answers below each call.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.app.process import running
from tests.docs.blocks import DOCUMENTS, Block, blocks
from tests.docs.calls import HOST, send

_WIDTH = 100


@contextmanager
def service(**settings: str) -> Iterator[httpx.Client]:
    """A client of a service with these settings, by default with the shipped weights."""
    inherited = {name: "" for name in os.environ if name.startswith("BERT_")}
    with running(inherited | settings) as process:
        process.until_ready()
        with httpx.Client(base_url=process.url, timeout=60) as client:
            yield client


def printed(client: httpx.Client, code: str) -> str:
    """What a Python block prints, when the service it names is this one."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code.replace(f"http://{HOST}", str(client.base_url).rstrip("/")), {"__name__": "__main__"})
    return output.getvalue()


def render(value: Any, indent: int = 0) -> str:
    """JSON as a person would lay it out: what fits into a line stands in a line."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {render(item, indent + 2)}" for key, item in value.items()]
    else:
        parts = [render(item, indent + 2) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * indent}{closing}"


def rounded(value: Any) -> Any:
    """Three digits of every score."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def answer(client: httpx.Client, block: Block) -> str:
    """What must stand below a block."""
    assert block.answer is not None
    if block.language == "python":
        return printed(client, block.text)
    body = render(rounded(send(client, block.text).json())) + "\n"
    head, gap, _ = block.answer.text.partition("\n\n")
    return f"{head}{gap}{body}" if block.answer.language == "http" else body


def renew(document: Path) -> None:
    """Write the answers of one document."""
    text = document.read_text(encoding="utf-8")
    asking = [block for block in blocks(document) if block.answer and block.language in {"sh", "python"}]
    with service() as client:
        for block in asking:
            assert block.answer is not None
            old = f"```{block.answer.language}\n{block.answer.text}```"
            new = f"```{block.answer.language}\n{answer(client, block)}```"
            start = re.search(re.escape(block.text) + "```\n+", text)
            assert start is not None
            assert text.startswith(old, start.end())
            text = text[: start.end()] + new + text[start.end() + len(old) :]
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for file in DOCUMENTS:
        if file.name != "training.md":  # its calls ask the model that it trains
            renew(file)
