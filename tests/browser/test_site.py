"""The documentation's site in a real browser: nothing is asked of other hosts, and no script fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import cut_off
from tests.docs import site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site.build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_no_page_asks_another_host(browser: Browser, built: Path, address: str) -> None:
    context = browser.new_context(base_url=address)
    stopped = cut_off(context)
    faults: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    pages = sorted(file.parent.relative_to(built) for file in built.rglob("index.html"))
    assert pages
    for path in pages:
        page.goto(f"/{path}/")
        assert page.locator("h1").first.is_visible()
    page.wait_for_load_state("networkidle")
    context.close()
    assert stopped == []
    assert faults == []


@pytest.mark.parametrize(
    ("scheme", "pages"),  # each page takes seconds; these have all that there is on a page
    [("light", ["", "api/", "benchmarks/"]), ("dark", ["", "benchmarks/"])],
)
def test_no_page_breaks_a_serious_rule(browser: Browser, address: str, scheme: str, pages: list[str]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(base_url=address, color_scheme=scheme)
    page = context.new_page()
    found = []
    for path in pages:
        answer = page.goto(f"/{path}")
        assert answer is not None
        assert answer.ok
        violations = Axe().run(page).response["violations"]
        serious = [fault for fault in violations if fault["impact"] in {"serious", "critical"}]
        found += [(page.url, fault["id"], [node["html"] for node in fault["nodes"]][:5]) for fault in serious]
    context.close()
    assert found == []
