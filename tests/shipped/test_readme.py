"""The README's claims: its curl calls give the answers printed below them, its figures are the report's."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.docs.calls import assert_answers, send

README = (Path(__file__).parents[2] / "README.md").read_text()
CALLS = re.findall(r"```sh\n(curl .*?)```\n+```json\n(.*?)```", README, re.DOTALL)


def test_the_readme_shows_a_call_for_each_task() -> None:
    paths = [re.search(r"localhost:8000(/[a-z-]+)", command)[1] for command, _ in CALLS]  # type: ignore[index]
    assert paths == ["/fill-mask", "/next-sentence", "/sentiment"]


@pytest.mark.parametrize(("command", "answer"), CALLS)
def test_the_readmes_call_gives_the_readmes_answer(shipped: httpx.Client, command: str, answer: str) -> None:
    assert_answers(send(shipped, command), "json", answer)
