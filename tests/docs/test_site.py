"""The site: built without a warning, and asking nothing of other hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import site
from tests.docs.blocks import DOCUMENTS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site.build(tmp_path_factory.mktemp("site"))


def test_every_document_is_a_page(built: Path) -> None:
    for document in DOCUMENTS:
        page = built / ("" if document.stem == "index" else document.stem) / "index.html"
        assert page.is_file(), page


def test_pages_ask_nothing_of_other_hosts(built: Path) -> None:
    assert site.foreign(built) == []


def test_diagram_is_a_picture(built: Path) -> None:
    page = (built / "architecture" / "index.html").read_text(encoding="utf-8")
    assert '<figure class="diagram"' in page
    assert "FairQueue.take" in page
    assert "flowchart TD</" not in page


@pytest.mark.parametrize(
    "page",
    [
        '<img src="https://example.org/a.png">',
        '<script src="//example.org/a.js"></script>',
        '<link rel="preconnect" href="https://example.org">',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        "<style>@import url(https://example.org/a.css);</style>",
        '<p style="background: url(https://example.org/a.png)">',
        '<pre class="mermaid">',
    ],
)
def test_foreign_address_is_found(tmp_path: Path, page: str) -> None:
    (tmp_path / "index.html").write_text(page)
    assert len(site.foreign(tmp_path)) == 1


def test_link_to_another_host_is_no_request(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="https://example.org">there</a><img src="images/a.png">')
    assert site.foreign(tmp_path) == []
