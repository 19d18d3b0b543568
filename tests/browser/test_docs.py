"""The API's documentation, as a person uses it."""

from __future__ import annotations

import json

import pytest

from tests.browser.conftest import OpenPage

TASKS = ["/fill-mask", "/next-sentence", "/sentiment"]


@pytest.mark.parametrize("path", TASKS)
def test_shown_example_works_on_execute(open_page: OpenPage, path: str) -> None:
    page = open_page("/docs")
    block = page.locator(".opblock", has=page.locator(f'[data-path="{path}"]'))
    block.locator(".opblock-summary-control").click()
    example = json.loads(block.locator("textarea").first.input_value())
    block.get_by_role("button", name="Execute").click()
    answer = block.locator(".live-responses-table")
    assert answer.locator(".response-col_status").last.inner_text().split()[0] == "200"
    body = json.loads(answer.locator(".highlight-code code").first.inner_text())
    assert len(body["results"]) == (len(example["inputs"]) if isinstance(example["inputs"], list) else 1)
    assert "server-timing" in answer.inner_text()
