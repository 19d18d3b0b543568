"""Uvicorn's HTTP protocol with the bounds that it lacks: nobody holds a connection by sending slowly."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Closes the connection if a request's head is too large, or is not there within the request timeout; and
    if the rest of a body, whose request was answered without it, keeps on coming for as long.

    A body that is awaited is bounded by the request's deadline (`json_route`).
    """

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._seconds: float = config.app.state.settings.request_timeout_ms / 1000  # type: ignore[union-attr]
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._in_request = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self._in_head:
            self._arm()
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = self._in_request = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is there."""
        self._in_request = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called by the request's task."""
        super().on_response_complete()
        if self._in_request:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
