"""axe-core's rules on every view, in the light and in the dark."""

from __future__ import annotations

import pytest

from tests.browser.conftest import OpenPage

ANSWERS = {
    "Fill a mask": "#fill-mask ol",
    "Next sentence": "#next-sentence .gauge",
    "Sentiment": "#influence .words span",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_playground_breaks_no_rule(open_page: OpenPage, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(color_scheme=scheme, bypass_csp=True)  # axe is a foreign script
    for tab, answer in ANSWERS.items():
        page.get_by_role("tab", name=tab).click()
        page.locator(f"[aria-busy=false] {answer}").first.wait_for()
        page.wait_for_function("document.getAnimations().length === 0")  # half faded in, nothing has its colour
        violations = Axe().run(page).response["violations"]
        assert [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in violations] == []
