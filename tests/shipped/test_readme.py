"""The README's claims: its curl calls give the answers printed below them, its figures are the report's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
CALLS = re.findall(r"```sh\n(curl .*?)```\n+```json\n(.*?)```", README, re.DOTALL)


def test_the_readme_shows_a_call_for_each_task() -> None:
    paths = [re.search(r"localhost:8000(/[a-z-]+)", command)[1] for command, _ in CALLS]  # type: ignore[index]
    assert paths == ["/fill-mask", "/next-sentence", "/sentiment"]


@pytest.mark.parametrize(("command", "answer"), CALLS)
def test_the_readmes_call_gives_the_readmes_answer(shipped: httpx.Client, command: str, answer: str) -> None:
    _curl, flag, body, url = shlex.split(command.replace("\\\n", " "))
    assert flag == "--json"
    response = shipped.post(url.removeprefix("localhost:8000"), json=json.loads(body))
    assert response.status_code == 200
    assert_alike(response.json(), json.loads(answer))


def assert_alike(given: Any, shown: Any) -> None:
    """Equal, but for the last digits of a score: processors with and without bfloat16 differ there."""
    if isinstance(shown, dict):
        assert given.keys() == shown.keys()
        for name, value in shown.items():
            assert_alike(given[name], value)
    elif isinstance(shown, list):
        assert len(given) == len(shown)
        for one, other in zip(given, shown, strict=True):
            assert_alike(one, other)
    elif isinstance(shown, float):
        assert given == pytest.approx(shown, abs=0.02)
    else:
        assert given == shown
