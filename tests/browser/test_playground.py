"""The playground, by mouse, by keyboard and on a phone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import PATIENCE, OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request, Route

ROOT = Path(__file__).parents[2]
TABS = ["Fill a mask", "Next sentence", "Sentiment"]


def answered(page: Page) -> str:
    """Wait for an answer to what is on the page now; its line of times."""
    page.locator("[aria-busy=false] #timing:not(:empty)").wait_for()
    return page.locator("#timing").inner_text()


def asked(page: Page) -> list[Request]:
    """The list that the page's questions to the model will be in."""
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request) if request.method == "POST" else None)
    return requests


def route_first(page: Page, url: str, handle: Callable[[Route], object]) -> None:
    """Handle the first request, and let the others through. Playwright's `times=1` would end the interception while
    another request may be on its way, and that would fail."""
    routes: list[Route] = []

    def first(route: Route) -> None:
        routes.append(route)
        if len(routes) == 1:
            handle(route)
        else:
            route.fallback()

    page.route(url, first)


def until(page: Page, condition: Callable[[], object]) -> None:
    """Wait for a condition while the page goes on."""
    end = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < end
        page.wait_for_timeout(20)


def write(page: Page, label: str, text: str) -> None:
    """Text into a field, and its answer awaited."""
    field = page.get_by_label(label, exact=True)
    field.fill("")
    page.get_by_text("The text is empty.").wait_for()
    field.fill(text)


def test_word_is_masked_by_a_click_and_replaced_by_another(open_page: OpenPage) -> None:
    page = open_page()
    write(page, "A sentence", "the film was good")
    page.get_by_text("No word is masked yet.").wait_for()
    page.get_by_role("button", name="film", exact=True).click()
    assert page.get_by_label("A sentence").input_value() == "the [MASK] was good"
    assert "tokens" in answered(page)
    candidates = page.locator("#fill-mask ol button")
    assert candidates.count() == 5
    assert candidates.first.locator(".bar").bounding_box()["width"] > 50  # type: ignore[index]
    candidates.last.click()
    text = page.get_by_label("A sentence").input_value()
    assert "[MASK]" not in text
    assert text != "the film was good"


def test_mask_is_taken_back_by_a_second_click(open_page: OpenPage) -> None:
    page = open_page()
    write(page, "A sentence", "the film was good")
    page.get_by_role("button", name="good", exact=True).click()
    page.get_by_role("button", name="[MASK]", pressed=True).click()
    assert page.get_by_label("A sentence").input_value() == "the film was good"
    page.get_by_role("button", name="film", exact=True).click()
    page.get_by_role("button", name="good", exact=True).click()
    for _ in range(2):  # the first, then the second
        page.get_by_role("button", name="[MASK]", pressed=True).first.click()
    assert page.get_by_label("A sentence").input_value() == "the film was good"


def test_long_text_has_no_word_buttons(open_page: OpenPage) -> None:
    page = open_page()
    answered(page)
    page.get_by_label("A sentence").fill("good film " * 20_000)
    page.get_by_text("A text of more than 2,000 words has no buttons").wait_for()
    assert page.locator("#masked-words button").count() == 0
    write(page, "A sentence", "good film " * 1000)
    page.get_by_text("Click a word to mask it").wait_for()
    assert page.locator("#masked-words button").count() == 2000


def test_every_mask_has_its_candidates(open_page: OpenPage) -> None:
    page = open_page()
    write(page, "A sentence", "a [MASK] film and a [MASK] movie")
    page.get_by_role("heading", name="Mask 2").wait_for()
    page.locator("#fill-mask ol").nth(1).get_by_role("button").first.click()
    assert page.get_by_label("A sentence").input_value().startswith("a [MASK] film and a ")


def test_focus_goes_to_the_word_that_was_chosen(open_page: OpenPage) -> None:
    page = open_page()
    write(page, "A sentence", "a [MASK] film and a [MASK] movie")
    page.get_by_role("heading", name="Mask 2").wait_for()
    candidate = page.locator("#fill-mask ol").nth(1).get_by_role("button").first
    candidate.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("[...document.activeElement.parentNode.children].indexOf(document.activeElement)") == 5


def test_everything_can_be_done_by_keyboard(open_page: OpenPage) -> None:
    page = open_page()
    answered(page)
    page.keyboard.press("Tab")  # the link to the API
    page.keyboard.press("Tab")  # the chosen tab
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Next sentence").get_attribute("aria-selected") == "true"
    for text in ("i loved it", "it was good"):
        page.keyboard.press("Tab")  # the field's button
        page.keyboard.press("Tab")
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
    page.get_by_text("that the second follows the first").wait_for()
    assert '"i loved it", "it was good"' in page.locator("#python").inner_text()
    page.get_by_role("tab", name="Next sentence").focus()
    page.keyboard.press("Home")
    assert page.get_by_role("tab", name="Fill a mask").get_attribute("aria-selected") == "true"
    page.get_by_role("button", name="films", exact=True).focus()
    page.keyboard.press("Enter")
    assert page.get_by_label("A sentence").input_value().endswith("best [MASK] I have ever [MASK].")
    assert page.evaluate("document.activeElement.textContent") == "[MASK]"


def test_gauge_stands_where_the_score_is(open_page: OpenPage) -> None:
    page = open_page("/#next-sentence")
    answered(page)
    percent = int(page.locator("#next-sentence .verdict strong").inner_text().split()[0])
    page.wait_for_function("document.querySelector('.needle').getAnimations().length === 0")  # the needle glides
    gauge, needle = page.locator(".gauge").bounding_box(), page.locator(".needle").bounding_box()
    assert gauge
    assert needle
    position = (needle["x"] + needle["width"] / 2 - gauge["x"]) / gauge["width"]
    assert position == pytest.approx(percent / 100, abs=0.01)


def serve_labels(page: Page, scores: dict[str, float], problem_type: str | None = None) -> None:
    """Answers of a classifier with these labels; what masks a word lowers the first score by 0.1."""

    def tell(route: Route) -> None:
        told = route.fetch().json()
        told["models"][-1] |= {"labels": sorted(scores), "problem_type": problem_type}
        route.fulfill(json=told)

    def classify(route: Route) -> None:
        inputs = route.request.post_data_json["inputs"]
        results = []
        for text in [inputs] if isinstance(inputs, str) else inputs:
            lowered = [score - 0.1 * (i == 0 and "[MASK]" in text) for i, score in enumerate(scores.values())]
            predictions = [{"label": label, "score": score} for label, score in zip(scores, lowered, strict=True)]
            results.append({"predictions": predictions, "tokens": 3, "truncated": False})
        route.fulfill(json={"model": "other", "results": results})

    page.route("**/info", tell)
    page.route("**/classify", classify)
    page.goto("/#sentiment")


def test_playground_shows_the_best_of_many_labels(open_page: OpenPage) -> None:
    page = open_page("/docs")
    serve_labels(page, {"TRAVEL & TRANSPORT": 0.62} | {f"TOPIC_{i}": 0.02 - i / 1000 for i in range(20)})
    page.locator("#influence .hint", has_text="+0.10").wait_for()
    rows = page.locator("#sentiment output .row").all_inner_texts()
    assert len(rows) == 10
    assert rows[0].split("\n") == ["TRAVEL & TRANSPORT", "62 %"]
    assert page.get_by_text("11 more with lower scores").is_visible()
    assert page.get_by_role("tab").all_inner_texts() == ["Fill a mask", "Next sentence", "Classify"]
    assert page.get_by_label("A text", exact=True).last.input_value().startswith("The match ended")
    assert "/classify" in page.locator("#curl").inner_text()
    assert "bert.classify(" in page.locator("#python").inner_text()
    assert "opinion" not in page.locator("main").inner_text().lower()


def test_playground_lets_choose_among_tasks_of_the_same_labels(open_page: OpenPage) -> None:
    def tell(route: Route) -> None:
        told = route.fetch().json()
        told["models"][-1]["tasks"] = ["sentiment", *others]
        route.fulfill(json=told)

    def answer(route: Route) -> None:
        asked_about.append(route.request.post_data_json["inputs"])
        route.continue_(url=route.request.url.replace("topics", "sentiment"))

    asked_about: list[Any] = []
    others: list[str] = []
    page = open_page("/docs")
    page.route("**/topics", answer)
    page.route("**/info", tell)
    page.goto("/#sentiment")
    answered(page)
    assert not page.get_by_label("Task", exact=True).is_visible()  # there is one task
    others.append("topics")
    page.reload()
    page.get_by_label("Task", exact=True).select_option("topics")
    until(page, lambda: asked_about)
    assert page.locator("#opinion").input_value() == asked_about[0]
    assert "/topics" in page.locator("#curl").inner_text()
    program = page.locator("#python").inner_text()
    assert "httpx.post(" in program
    compile(program, "program", "exec")


def test_playground_shows_a_regression_as_numbers(open_page: OpenPage) -> None:
    page = open_page("/docs")
    serve_labels(page, {"STARS": 4.21, "LENGTH": -0.5}, "regression")
    page.get_by_text("4.21").wait_for()
    assert page.locator("#sentiment output").inner_text().split() == ["4.21", "STARS", "-0.50", "LENGTH"]
    page.locator("#influence .hint", has_text="+0.10").wait_for()


def test_playground_learns_of_labels_late(open_page: OpenPage) -> None:
    def loading(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"models": [], "status": "loading"})

    page = open_page("/docs")
    page.route("**/info", loading)
    page.goto("/#sentiment")
    answered(page)
    assert page.get_by_role("tab", name="Sentiment").is_visible()
    page.get_by_label("An opinion").fill("My own text.")
    serve_labels(page, {"SPORT": 1.9, "TRAVEL": 1.2}, "regression")
    page.get_by_text("1.90").wait_for()
    assert page.locator("#opinion").input_value() == "My own text."


def test_words_are_weighed_in_one_request(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    page.locator("#influence:visible").wait_for()
    requests = asked(page)
    write(page, "An opinion", "i loved the film!")
    page.locator("#influence .words", has_text="i loved the film!").wait_for()
    inputs = [request.post_data_json["inputs"] for request in requests]
    hidden = ["[MASK] loved the film!", "i [MASK] the film!", "i loved [MASK] film!", "i loved the [MASK]!"]
    assert inputs == ["i loved the film!", hidden]
    weights = page.locator("#influence .words span").evaluate_all(
        "spans => spans.map((span) => Number(span.style.getPropertyValue('--weight')))"
    )
    assert len(weights) == 4
    assert max(weights) == 1


def test_words_that_are_not_weighed_have_no_weight(open_page: OpenPage) -> None:
    def small(route: Route) -> None:
        info = route.fetch().json()
        route.fulfill(json=info | {"limits": info["limits"] | {"max_client_batch": 2}})

    page = open_page("/info")
    page.route("**/info", small)
    page.goto("/#sentiment")
    page.locator("#status").filter(has_text="ready").wait_for()  # with what it says of limits
    write(page, "An opinion", "i loved the film!")
    page.locator("#influence .words", has_text="i loved the film!").wait_for()
    assert page.locator("#influence .words span").all_inner_texts() == ["i", "loved"]
    assert page.locator("#influence .hint").inner_text().startswith("What each of the first 2 words adds to ")


def test_words_without_influence_have_no_colours(open_page: OpenPage) -> None:
    def rate(route: Route) -> None:
        inputs = route.request.post_data_json["inputs"]
        scores = [0.9 if "[MASK]" not in text else 0.896 for text in ([inputs] if isinstance(inputs, str) else inputs)]
        results = [
            {"predictions": [{"label": "POSITIVE", "score": s}, {"label": "NEGATIVE", "score": 1 - s}], "tokens": 3}
            for s in scores
        ]
        route.fulfill(json={"model": "sure", "results": results})

    page = open_page("/info")
    page.route("**/sentiment", rate)
    page.goto("/#sentiment")
    page.get_by_text("No single word changes the score.").wait_for()
    assert page.locator("#influence .words").inner_text().startswith("The plot is thin")
    assert page.locator("#influence .words span").count() == 0


def test_answer_stands_where_the_weighing_is_refused(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")

    def refuse_lists(route: Route) -> None:
        if isinstance(route.request.post_data_json["inputs"], list):
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"title": "Too many", "status": 429})
        else:
            route.continue_()

    page.route("**/sentiment", refuse_lists)
    with page.expect_response(lambda response: response.status == 429):
        write(page, "An opinion", "i loved the film!")
    assert "tokens" in answered(page)
    assert page.locator("#sentiment .row").first.is_visible()
    assert not page.locator("#influence").is_visible()


def test_only_the_last_of_many_keystrokes_is_asked_about(open_page: OpenPage) -> None:
    page = open_page("/#next-sentence")
    answered(page)
    requests = asked(page)
    text = "it was a good film and i loved it"
    page.get_by_label("A text that may follow it").evaluate(
        """(field, text) => {
            for (const end of text.split("").keys()) {
                field.value = text.slice(0, end + 1);
                field.dispatchEvent(new Event("input", { bubbles: true }));
            }
        }""",
        text,
    )
    until(page, lambda: requests and requests[-1].post_data_json["inputs"]["text_pair"] == text)
    answered(page)
    assert len(requests) <= 3


def test_late_answer_to_an_old_question_is_not_shown(open_page: OpenPage) -> None:
    page = open_page("/#next-sentence")
    answered(page)
    held: list[Route] = []
    route_first(page, "**/next-sentence", held.append)
    page.get_by_label("A text", exact=True).fill("first")
    until(page, lambda: held)
    with page.expect_response("**/next-sentence"):
        page.get_by_label("A text", exact=True).fill("second")
    shown = answered(page)
    held[0].fulfill(json={"results": [{"predictions": [{"label": "IS_NEXT", "score": 1}], "tokens": 9999}]})
    page.wait_for_timeout(200)
    assert answered(page) == shown


def test_old_answer_is_cleared_while_the_service_is_slow(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    held: list[Route] = []
    route_first(page, "**/sentiment", held.append)
    page.get_by_label("An opinion").fill("good")
    page.locator("[aria-busy=true]").get_by_text("Waiting for the service…").wait_for()
    assert page.locator("#sentiment output").inner_text() == ""
    assert page.locator("#timing").inner_text() == ""
    assert not page.locator("#influence").is_visible()
    held[0].continue_()
    assert "tokens" in answered(page)
    assert page.get_by_role("alert").inner_text() == ""


def test_request_without_an_answer_ends(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    page.evaluate(
        "() => { const real = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = () => real(100); }"
    )
    page.route("**/sentiment", lambda _: None)  # never answered
    page.get_by_label("An opinion").fill("good")
    page.locator("[aria-busy=false]").get_by_text("The service did not answer within 60 seconds.").wait_for()
    page.unroute_all(behavior="ignoreErrors")


def test_status_is_asked_for_again_while_the_service_is_away(open_page: OpenPage) -> None:
    page = open_page()
    status = page.get_by_role("status")
    status.filter(has_text="ready").wait_for()
    page.route("**/fill-mask", lambda route: route.abort())
    page.route("**/info", lambda route: route.abort())
    write(page, "A sentence", "a [MASK] film")
    status.filter(has_text="The service cannot be reached.").wait_for()
    page.unroute("**/info")
    status.filter(has_text="ready").wait_for()


def test_error_is_a_sentence(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    page.get_by_label("An opinion").fill("good " * 100)
    problem = page.locator("[aria-busy=false]").get_by_role("alert").filter(has_text="tokens")
    problem.wait_for()
    assert problem.inner_text()[0].isupper()
    assert problem.inner_text().endswith(".")
    assert page.locator("#sentiment output").inner_text() == ""


def test_a_text_that_is_too_long_can_be_cut(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    box = page.get_by_label("Cut texts that are longer than the model’s limit")
    assert not box.is_visible()
    page.get_by_label("An opinion").fill("good " * 100)
    box.check()
    assert "cut to the model’s limit" in answered(page)
    assert '"parameters": { "truncate": true }' in page.locator("#curl").inner_text()
    assert "truncate=True" in page.locator("#python").inner_text()
    box.uncheck()
    page.get_by_role("alert").filter(has_text="tokens").wait_for()


def test_what_is_no_answer_of_the_service_is_told(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    page.route("**/sentiment", lambda route: route.fulfill(body="<h1>Sign in</h1>", content_type="text/html"))
    page.get_by_label("An opinion").fill("good")
    page.get_by_text("The answer is not JSON, so it is not from the service.").wait_for()


def test_answer_that_is_cut_off_by_typing_is_no_error(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    answered(page)
    page.evaluate(
        """() => {
            const honest = window.fetch;
            window.fetch = async (url, options) => {
                if (!String(url).endsWith("/sentiment")) return honest(url, options);
                const body = new ReadableStream({
                    start(parts) {
                        const error = new DOMException("aborted", "AbortError");
                        options.signal.addEventListener("abort", () => parts.error(error));
                    },
                });
                window.fetch = honest;
                return new Response(body, { headers: { "Content-Type": "application/json" } });
            };
            window.alerts = [];
            const seen = () => window.alerts.push(document.querySelector("#problem").textContent);
            new MutationObserver(seen).observe(document.querySelector("#problem"), { childList: true });
        }"""
    )
    page.get_by_label("An opinion").fill("a film whose answer never comes")
    page.wait_for_timeout(500)
    page.get_by_label("An opinion").fill("good")
    answered(page)
    assert set(page.evaluate("window.alerts")) <= {"", "Waiting for the service…"}  # on a busy machine


def test_loading_service_is_asked_again(open_page: OpenPage) -> None:
    def loading(route: Route) -> None:
        problem = {"detail": "the service is loading"}
        route.fulfill(status=503, json=problem, headers={"Retry-After": "1"})

    page = open_page("/info")
    route_first(page, "**/fill-mask", loading)
    page.goto("/")
    page.get_by_text("The service is loading. Trying again…").wait_for()
    assert "tokens" in answered(page)
    assert page.get_by_role("alert").inner_text() == ""


def test_key_is_asked_for_and_sent(open_page: OpenPage) -> None:
    def guarded(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "send an API key"})

    page = open_page("/info")
    page.route("**/fill-mask", guarded)
    page.goto("/")
    page.get_by_text("Enter an API key above.").wait_for()
    key = page.get_by_label("This service requires an API key.")
    assert key.evaluate("key => key === document.activeElement")
    key.fill("secr€t")
    page.keyboard.press("Enter")
    page.get_by_text("This key has a character that a browser cannot send.").wait_for()
    key.fill("secret")
    page.keyboard.press("Enter")
    assert "tokens" in answered(page)
    assert not key.is_visible()
    assert page.get_by_label("A sentence").evaluate("field => field === document.activeElement")
    assert "$BERT_API_KEY" in page.locator("#curl").inner_text()
    assert "secret" not in page.locator("main").inner_text()


def test_markup_in_a_text_stays_text(open_page: OpenPage) -> None:
    page = open_page("/#sentiment")
    text = "<img src=x onerror=alert(1)> good"
    page.get_by_label("An opinion").fill(text)
    page.locator("#influence .words", has_text=text).wait_for()
    assert page.locator("main img").count() == 0


@pytest.mark.parametrize("tab", TABS)
def test_shown_calls_give_the_shown_answer(open_page: OpenPage, tab: str) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("tab", name=tab).click()
    page.locator("textarea:visible").last.fill("""It's "good" \\ [MASK] & it was $HOME""")
    answered(page)
    shown = page.locator("#fill-mask ol .name").all_inner_texts()
    for language in ("curl", "python"):
        page.locator(f"[data-copy={language}]").click()
        page.get_by_role("button", name="Copied").last.wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator(f"#{language}").text_content()
        output = run(language, copied)
        wanted = {"Fill a mask": shown, "Next sentence": ["IS_NEXT"], "Sentiment": ["NEGATIVE"]}[tab]
        assert [name for name in wanted if name not in output] == []


def run(language: str, text: str) -> str:
    """What a copied call prints."""
    command = ["bash", "-c", text] if language == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_phone_needs_no_scrolling_sideways(open_page: OpenPage) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    page = open_page(**phone)
    for tab in TABS:
        page.get_by_role("tab", name=tab).tap()
        page.locator("textarea:visible").last.fill("averyveryveryverylongwordthatneverends [MASK]")
        answered(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.get_by_role("tab", name=tab).bounding_box()["height"] >= 40  # type: ignore[index]  # a thumb's


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_page_follows_the_system_into_the_dark(open_page: OpenPage, scheme: str, dark: bool) -> None:
    page = open_page(color_scheme=scheme)
    script = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert (max(page.evaluate(script)) < 64) is dark


def test_pages_work_behind_a_path_prefix(open_page: OpenPage, url: str) -> None:
    page = open_page("/info")
    # What a reverse proxy does: /models/bert/x here is /x there.
    page.route("**/models/bert/**", lambda route: route.fulfill(response=route.fetch(url=direct(route))))

    def direct(route: Route) -> str:
        return route.request.url.replace("/models/bert/", "/")

    page.goto("/models/bert/")
    answered(page)
    assert f"{url}/models/bert/fill-mask" in page.locator("#curl").inner_text()
    page.get_by_role("link", name="API").click()
    page.locator('[data-path="/sentiment"]').first.click()
    page.locator(".opblock.is-open").get_by_role("button", name="Execute").click()
    assert f"{url}/models/bert/sentiment" in page.locator(".request-url").inner_text()
    page.locator(".live-responses-table", has_text="POSITIVE").wait_for()
