"""Mermaid diagrams of the documentation as pictures: the site needs no script and no other host for them.

The source stands in the document, where GitHub draws it too. `python -m tests.docs.diagrams` draws every
diagram that has no picture yet into docs/images (it needs npm for Mermaid, and Chromium), and deletes the
pictures of diagrams that are gone. mkdocs.yml puts the picture in place of its source.
"""

from __future__ import annotations

import hashlib
import html
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MERMAID = "@mermaid-js/tiny@11.17.2"
_CONFIGURATION = {
    "startOnLoad": False,
    "securityLevel": "strict",
    "theme": "neutral",
    "fontFamily": "sans-serif",
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False},
}


def picture(source: str) -> Path:
    """The file that holds a diagram; its name changes with the source."""
    return IMAGES / f"diagram-{hashlib.sha256(source.strip().encode()).hexdigest()[:12]}.svg"


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """The formatter that mkdocs.yml names: a diagram's source into HTML."""
    file = picture(source)
    if not file.exists():
        raise FileNotFoundError(f"{file}: draw it by `python -m tests.docs.diagrams`")
    label = html.escape(" ".join(source.split()), quote=True)
    return f'<figure class="diagram" role="img" aria-label="{label}">{file.read_text(encoding="utf-8")}</figure>'


def draw(sources: list[str]) -> None:
    """Write the pictures of these sources."""
    from playwright.sync_api import sync_playwright

    from tests.browser.chromium import launch

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        browser = launch(playwright)
        page = browser.new_page()
        page.add_script_tag(path=Path(folder) / "package" / "dist" / "mermaid.tiny.js")
        page.evaluate("configuration => mermaid.initialize(configuration)", _CONFIGURATION)
        for source in sources:
            file = picture(source)
            drawn = page.evaluate(
                "async ([id, source]) => (await mermaid.render(id, source)).svg", [file.stem, source.strip()]
            )
            file.write_text(drawn + "\n", encoding="utf-8")
            print(file)
        browser.close()


def main() -> None:
    """Draw what is missing, delete what is left over."""
    from tests.docs import blocks

    sources = {picture(block.text): block.text for block in blocks.of("mermaid")}
    for file in IMAGES.glob("diagram-*.svg"):
        if file not in sources:
            file.unlink()
    if missing := [source for file, source in sources.items() if not file.exists()]:
        draw(missing)


if __name__ == "__main__":
    main()
