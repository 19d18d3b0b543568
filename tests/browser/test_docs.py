"""The API's documentation, as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.app.process import WITHOUT_TORCH, running
from tests.browser.conftest import PATIENCE, OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TASKS = ["/fill-mask", "/next-sentence", "/sentiment"]


def execute(page: Page, path: str) -> tuple[Any, Any]:
    """The example that the page shows for an endpoint, and the answer that it shows after Execute."""
    block = page.locator(".opblock", has=page.locator(f'[data-path="{path}"]'))
    block.locator(".opblock-summary-control").click()
    example = json.loads(block.locator("textarea").first.input_value())
    block.get_by_role("button", name="Execute").click()
    answer = block.locator(".live-responses-table")
    assert answer.locator(".response-col_status").last.inner_text().split()[0] == "200"
    assert "server-timing" in answer.inner_text()
    return example, json.loads(answer.locator(".highlight-code code").first.inner_text())


def test_shown_examples_work_on_execute(open_page: OpenPage) -> None:
    page = open_page("/docs")
    for path in TASKS:
        example, answer = execute(page, path)
        inputs = example["inputs"]
        assert len(answer["results"]) == (len(inputs) if isinstance(inputs, list) else 1), path


def test_docs_fit_a_phone_and_hide_the_servers(open_page: OpenPage) -> None:
    page = open_page("/docs", viewport={"width": 360, "height": 740})
    descriptions = page.locator(".opblock-tag small")
    descriptions.first.wait_for()
    assert min(box.bounding_box()["width"] for box in descriptions.all()) > 250  # type: ignore[index]
    assert page.get_by_role("button", name="Authorize").is_visible()
    assert not page.get_by_text("Servers").is_visible()
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("heading", name="BERT playground").wait_for()


def test_docs_without_the_document_say_so(open_page: OpenPage) -> None:
    page = open_page("/info")
    page.route("**/openapi.json", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    page.goto("/docs")
    page.get_by_text("The OpenAPI document could not be loaded; reload the page.").wait_for()


def test_pages_behind_the_key_open_with_it_as_password(browser: Browser, pretrained: Path, sentiment: Path) -> None:
    checkpoints = {"BERT_PRETRAINED": str(pretrained), "BERT_SENTIMENT": str(sentiment)}
    with running(checkpoints | WITHOUT_TORCH | {"BERT_DOCS": "key", "BERT_API_KEYS": "the-key"}) as service:
        service.until_ready()
        typed = {"username": "anybody", "password": "the-key"}
        context = browser.new_context(base_url=service.url, http_credentials=typed)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto("/docs")
        page.locator('[data-path="/sentiment"]').wait_for()  # the document behind the page came too
        context.close()
