"""Renews rows and hashes in model/weights/DATA.md, the files behind the shipped weights:
`python -m tests.shipped.data FOLDER`."""

from __future__ import annotations

import hashlib
import lzma
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "model" / "weights" / "DATA.md"
FOLDER = ROOT.parent / "shared" / "data"

ROW = re.compile(r"^\| `(?P<name>\S+)` \| (?P<rows>[\d,]+) \| `(?P<sha256>[0-9a-f]{64})` \|", re.MULTILINE)


def sha256(file: Path) -> str:
    """Hash of a file as hexadecimal digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def rows(file: Path) -> int:
    """Lines of a compressed file."""
    with lzma.open(file) as lines:
        return sum(1 for _ in lines)


def main(folder: Path) -> None:
    """Write rows and hash of each file that the page names."""

    def renewed(row: re.Match[str]) -> str:
        file = folder / row["name"]
        return f"| `{row['name']}` | {rows(file):,} | `{sha256(file)}` |"

    PAGE.write_text(ROW.sub(renewed, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
