"""axe-core's rules on every view, in the light and in the dark."""

from __future__ import annotations

import pytest

from tests.browser.conftest import OpenPage

GRAVE = {"serious", "critical"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["fill-mask", "next-sentence", "sentiment"])
def test_playground_has_no_grave_fault(open_page: OpenPage, view: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(f"/#{view}", color_scheme=scheme, bypass_csp=True)  # axe is a foreign script
    page.locator("#timing:not(:empty)").wait_for()
    if view == "sentiment":
        page.locator("#influence:visible").wait_for()
    found = Axe().run(page).response["violations"]
    assert [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found] == []
