"""The fenced blocks of the documentation, as they stand in the files."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(DOCS.glob("*.md"))

ANSWERS = {"json", "http", "text"}

_FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block; `answer` is the block right below it, if nothing stands between."""

    where: str
    language: str
    text: str
    answer: Block | None = None

    def commands(self) -> list[str]:
        """The commands of a shell block, comments left out. A quoted argument may go on in the next line."""
        found = [""]
        for line in self.text.replace("\\\n", " ").splitlines():
            found[-1] += line
            try:
                shlex.split(found[-1])
            except ValueError:  # a quotation that has not ended
                found[-1] += "\n"
            else:
                found.append("")
        return [command for command in found if command.strip() and not command.startswith("#")]


def blocks(document: Path) -> list[Block]:
    """All blocks of a document, in order."""
    text = document.read_text(encoding="utf-8")
    found: list[Block] = []
    follows = len(text)
    for match in reversed(list(_FENCE.finditer(text))):
        below = found and not text[match.end() : follows].strip()
        line = text.count("\n", 0, match.start("text"))
        answer = found[0] if below and found[0].language in ANSWERS else None
        found.insert(0, Block(f"{document.name}:{line}", match["language"], match["text"], answer))
        follows = match.start()
    return found


ALL = [block for document in DOCUMENTS for block in blocks(document)]


def of(*languages: str) -> list[Block]:
    """All blocks in these languages, of all documents."""
    return [block for block in ALL if block.language in languages]
