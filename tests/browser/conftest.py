"""A service with small random weights, and pages of a real browser on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.app.process import running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 120_000  # ms; other jobs may hold the processor

OpenPage = Callable[..., "Page"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without Chromium these tests are skipped; on a CI machine (`CI` is set) they fail instead."""
    if shutil.which("chromium") or os.environ.get("CI"):
        return
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason="needs Chromium: apt-get install chromium"))


@pytest.fixture(scope="session")
def url(pretrained: Path, sentiment: Path) -> Iterator[str]:
    """Where the service answers."""
    with running({"BERT_PRETRAINED": str(pretrained), "BERT_SENTIMENT": str(sentiment)}) as service:
        service.until_ready()
        yield service.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: while Playwright runs, no other event loop can."""
    from playwright.sync_api import sync_playwright

    from tests.browser.chromium import launch

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[OpenPage]:
    """Opens paths of the service. At the end: nothing was asked of another host, and no script failed."""
    from tests.browser.chromium import cut_off

    contexts, faults = [], []

    def opened(path: str = "/", **options: Any) -> Page:
        context = browser.new_context(base_url=url, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append((context, cut_off(context)))
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None)
        page.goto(path)
        return page

    yield opened
    for context, stopped in contexts:
        context.close()
        assert stopped == []
    assert faults == []
