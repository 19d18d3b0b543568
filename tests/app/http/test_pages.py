"""The pages over HTTP. tests/browser opens them in a browser."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).parents[3] / "app" / "http" / "static"


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_link_to_existing_files_of_this_host_only(serve: Any, path: str) -> None:
    async with serve() as service:
        page = await service.client.get(path)
        links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        answers = [await service.client.get("/" + link) for link in links]
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'self'", "frame-ancestors 'none'"} <= {*policy}
    assert not re.findall(r"(?:https?:)?//\S+", page.text)
    assert not [link for link in links if link.startswith("/")], "absolute links break behind a path prefix"
    assert {answer.status_code for answer in answers} == {200}


async def test_page_files_have_their_media_types(serve: Any) -> None:
    kinds = {".js": ("text/javascript", "application/javascript"), ".css": "text/css", ".svg": "image/svg+xml"}
    files = [file for file in STATIC.iterdir() if file.suffix in kinds]
    assert files
    async with serve() as service:
        for file in files:
            answer = await service.client.get(f"/static/{file.name}")
            assert answer.headers["content-type"].startswith(kinds[file.suffix]), file.name
            assert answer.content == file.read_bytes()


@pytest.mark.parametrize("path", ["/", "/docs", "/static/playground.js", "/static/swagger-ui.css"])
async def test_page_files_are_304_while_the_browsers_copy_is_current(serve: Any, path: str) -> None:
    async with serve() as service:
        first = await service.client.get(path)
        again = await service.client.get(path, headers={"If-None-Match": first.headers["etag"]})
        changed = await service.client.get(path, headers={"If-None-Match": '"older"'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["cache-control"] == first.headers["cache-control"]
    assert (changed.status_code, changed.content) == (200, first.content)
    assert first.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("part", ["bytes=9999999-", "x", "bytes=0-3"])
async def test_page_is_served_whole_whatever_part_is_asked_for(serve: Any, part: str) -> None:
    async with serve() as service:
        whole = await service.client.get("/")
        asked = await service.client.get("/", headers={"Range": part})
    assert (asked.status_code, asked.content) == (200, whole.content)
    assert asked.headers["content-security-policy"] == whole.headers["content-security-policy"]


async def test_pages_can_be_switched_off(serve: Any) -> None:
    paths = ("/", "/docs", "/openapi.json", "/static/playground.js", "/static/swagger-ui.css")
    async with serve(docs=False) as service:
        answers = [await service.client.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {404}


BROWSER = {"Authorization": "Basic " + base64.b64encode(b"anybody:the-key").decode()}


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/static/playground.js"])
async def test_pages_can_be_put_behind_the_key(serve: Any, path: str) -> None:
    async with serve(docs="key", api_keys="other,the-key") as service:
        refused = await service.client.get(path)
        wrong = await service.client.get(path, auth=("the-key", "guess"))
        broken = await service.client.get(path, headers={"Authorization": "Basic ?"})
        typed = await service.client.get(path, headers=BROWSER)
        sent = await service.client.get(path, headers={"Authorization": "Bearer the-key"})
        copy = await service.client.get(path, headers={"If-None-Match": typed.headers.get("etag", "*")})
        task = await service.client.post("/sentiment", json={"inputs": "good"}, headers=BROWSER)
    assert [refused.status_code, wrong.status_code, broken.status_code, copy.status_code] == [401] * 4
    assert refused.headers["www-authenticate"].startswith("Basic realm=")  # the browser asks for a password
    assert refused.json()["code"] == "unauthorized"
    assert [typed.status_code, sent.status_code] == [200, 200]
    assert (task.status_code, task.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("name", ["__init__.py", "index.html", "..%2Fmain.py", "swagger-ui.css.map", ""])
async def test_page_files_that_are_not_listed_are_not_found(serve: Any, name: str) -> None:
    async with serve() as service:
        answer = await service.client.get(f"/static/{name}")
    assert answer.status_code == 404


def test_page_scripts_never_write_markup() -> None:
    for file in STATIC.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", file.read_text("utf-8"))
