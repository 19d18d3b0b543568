"""The documentation as a site: built strictly, and asking nothing of other hosts. `make docs` runs this."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
_LOADED = {"src", "srcset", "poster", "data", "action"}  # attributes whose address a browser asks for by itself
_LINKS = {
    "stylesheet",
    "icon",
    "preconnect",
    "dns-prefetch",
    "preload",
    "modulepreload",
    "prefetch",
    "manifest",
}
_IN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)")
# The theme's script draws these elements with scripts that it fetches from a public host.
_FETCHING = {"mermaid", "glightbox", "arithmatex"}


def build(folder: Path) -> Path:
    """The site of a copy of docs/ in `folder`; every warning is an error."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class _Page(HTMLParser):
    """Collects what a browser would fetch from elsewhere while it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        loaded = [value for name, value in given.items() if name in _LOADED]
        if tag == "link" and _LINKS & set(given.get("rel", "").split()):
            loaded.append(given.get("href", ""))
        self.foreign += [url for url in loaded if urlsplit(url).netloc]
        self.foreign += _IN_CSS.findall(given.get("style", ""))
        self.foreign += [f".{name}" for name in _FETCHING & set(given.get("class", "").split())]


def foreign(site: Path) -> list[str]:
    """What the pages and style sheets of a site ask of other hosts: "file: address"."""
    found = []
    for file in sorted(site.rglob("*")):
        if file.suffix == ".html":
            page = _Page()
            text = file.read_text(encoding="utf-8")
            page.feed(text)
            styles = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
            found += [f"{file}: {url}" for url in page.foreign + _IN_CSS.findall(styles)]
        elif file.suffix == ".css":
            found += [f"{file}: {url}" for url in _IN_CSS.findall(file.read_text(encoding="utf-8"))]
    return found


if __name__ == "__main__":
    asked = foreign(Path(sys.argv[1]))
    if asked:
        sys.exit("\n".join(["the site asks other hosts:", *asked]))
    print(f"{sys.argv[1]}/index.html")
