"""The pictures of the README: `make screenshots`, after a change to a page or to the weights.

`python -m tests.browser.screenshots FOLDER` writes them; a service with the shipped weights must be running.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.app.process import running
from tests.browser.chromium import launch

WIDTH = 1200


def playground(page: Page) -> None:
    """A masked word and its candidates."""
    for _ in range(3):  # a first answer is slower than those after it
        page.goto("/")
        page.locator("#timing:not(:empty)").wait_for()


def sentiment(page: Page) -> None:
    """An opinion and the words that moved its score."""
    page.goto("/#sentiment")
    page.reload()
    page.locator("#influence:visible").wait_for()
    page.wait_for_timeout(500)  # the answer fades in


def docs(page: Page) -> None:
    """An example, executed."""
    page.goto("/docs")
    block = page.locator(".opblock", has=page.locator('[data-path="/sentiment"]'))
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Execute").click()
    block.locator(".live-responses-table").wait_for()
    block.locator(".opblock-section-request-body").evaluate("section => section.scrollIntoView()")


def main(folder: Path) -> None:
    """Write every picture, in few colours: flat areas need no more."""
    folder.mkdir(parents=True, exist_ok=True)
    with running({}) as service, sync_playwright() as playwright:
        service.until_ready()
        browser = launch(playwright)
        for show, height in ((playground, 900), (sentiment, 900), (docs, 1100)):
            page = browser.new_page(base_url=service.url, viewport={"width": WIDTH, "height": height})
            show(page)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            file = folder / f"{show.__name__}.png"
            picture.quantize(128).save(file, optimize=True)
            print(f"{file}: {file.stat().st_size / 1000:.0f} KB")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
