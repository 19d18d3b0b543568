"""The `curl` commands of the documentation, sent by httpx; and how an answer compares with the printed one."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from typing import Any

import httpx
import pytest

HOST = "localhost:8000"
TOLERANCE = 0.02
"""Of a score: processors with and without bfloat16 differ in the last digits."""


def send(client: httpx.Client, command: str) -> httpx.Response:
    """Send what a `curl` command would send. Only the options that the documentation uses are known."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--json", dest="body")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-i", action="store_true")
    parser.add_argument("url")
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert program == "curl"
    given = parser.parse_args(arguments)
    assert given.url.startswith(f"{HOST}/"), given.url
    headers = dict(re.split(r":\s*", header, maxsplit=1) for header in given.headers)
    path = given.url.removeprefix(HOST)
    if given.body is None:
        return client.get(path, headers=headers)
    return client.post(path, content=given.body, headers={"Content-Type": "application/json"} | headers)


def assert_alike(given: Any, shown: Any) -> None:
    """Equal, but for the last digits of a score."""
    if isinstance(shown, dict):
        assert given.keys() == shown.keys()
        for name, value in shown.items():
            assert_alike(given[name], value)
    elif isinstance(shown, list):
        assert len(given) == len(shown)
        for one, other in zip(given, shown, strict=True):
            assert_alike(one, other)
    elif isinstance(shown, float):
        assert given == pytest.approx(shown, abs=TOLERANCE)
    else:
        assert given == shown


def assert_answers(response: httpx.Response, language: str, shown: str) -> None:
    """The response is the printed one: a JSON body, or an `http` block of status, headers and body."""
    if language == "json":
        assert response.status_code == 200, response.text
        assert_alike(response.json(), json.loads(shown))
        return
    assert language == "http"
    head, _, body = shown.partition("\n\n")
    status, *headers = head.splitlines()
    assert response.status_code == int(status.split()[1]), response.text
    for line in headers:
        name, _, value = line.partition(": ")
        if name.lower() == "server-timing":
            assert re.sub(r"[\d.]+", "#", response.headers[name]) == re.sub(r"[\d.]+", "#", value)
        else:
            assert response.headers[name] == value
    if body:
        assert_alike(response.json(), json.loads(body))


def assert_printed(printed: str, shown: str) -> None:
    """The output is the printed one, but for the last digits of a score."""
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", printed).split() == number.sub("#", shown).split()
    for one, other in zip(number.findall(printed), number.findall(shown), strict=True):
        assert float(one) == pytest.approx(float(other), abs=TOLERANCE)
