"""The private names of uvicorn that `app.server` builds on: each is there in the installed version."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.server.draining import DrainingServer
from app.server.protocol import BoundedProtocol


def names(source: Any, *objects: str) -> set[str]:
    """Attributes of some objects, such as `self` or `self.cycle`, in the source of a class or method."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(source)))
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) in objects}


def borrowed(cls: Any) -> list[str]:
    """Attributes of `self` that a class neither defines nor sets in its `__init__`."""
    return sorted(names(cls, "self", "super()") - set(vars(cls)) - names(cls.__init__, "self"))


@pytest.fixture
async def protocol() -> HttpToolsProtocol:
    made = HttpToolsProtocol(uvicorn.Config(FastAPI(), log_config=None), uvicorn.server.ServerState(), {})
    made.on_message_begin()
    return made


@pytest.mark.parametrize("name", borrowed(BoundedProtocol))
def test_uvicorn_protocol_has(protocol: HttpToolsProtocol, name: str) -> None:
    assert hasattr(protocol, name)


@pytest.mark.parametrize("name", sorted(names(BoundedProtocol, "super()")))
def test_uvicorn_protocol_can_be_overridden_at(protocol: HttpToolsProtocol, name: str) -> None:
    assert hasattr(protocol, name)


@pytest.mark.parametrize("name", sorted(names(BoundedProtocol, "cycle", "self.cycle", "self._running_cycle")))
async def test_uvicorn_cycle_has(name: str) -> None:
    nothing: Any = None
    cycle = RequestResponseCycle(
        *[nothing] * 7, message_event=asyncio.Event(), expect_100_continue=False, keep_alive=True, on_response=print
    )
    assert hasattr(cycle, name)


@pytest.mark.parametrize("name", borrowed(DrainingServer))
def test_uvicorn_server_has(name: str) -> None:
    assert hasattr(uvicorn.Server(uvicorn.Config("", log_config=None)), name)
