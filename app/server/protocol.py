"""uvicorn's httptools protocol with read and write timeouts, and limits on the request head and on pipelining."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
from fastapi import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.http.context import CONTEXT, RequestContext, Service
from app.server import file_limits
from app.server.h2c_upgrade import RAW_BODY_HEADERS, UpgradeFilter
from app.settings import plain_address

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MIN_WRITTEN_BYTES = 64 * 1024
"""Bytes of a response that must be written within the request timeout, because the caller has to read."""
MAX_UNREAD_BYTES = 128 * 1024 * 1024
"""Limit on unread response bytes of all connections. A connection whose response exceeds it is closed."""
MIN_TIMEOUT_SECONDS = 1.0
"""Minimum time for the request head and for reading the response; a shorter request timeout bounds only the request."""
MAX_HEADERS = 200
"""Maximum headers of a request, because an empty one takes a hundred times its bytes in memory."""
MAX_PIPELINED = 100
"""Maximum requests of one connection that wait for the responses to earlier ones."""

SPARE_CONNECTIONS = 64
"""Connections above the limit, for health and metrics. Further ones are closed at once."""
WARNING_SECONDS = 60.0
"""Time between two warnings of closed connections."""
MAX_IDLE_SURPLUS_SECONDS = 5
"""Seconds until an idle connection above the limit is closed."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on each connection, because uvicorn has no such timeouts (uvicorn issue 157).

    The connection is closed if

    - a request head is larger than `MAX_HEAD_BYTES` or `MAX_HEADERS`, or takes longer than the request timeout;
    - the rest of a body takes longer than that, after its request was answered;
    - less than `MIN_WRITTEN_BYTES` of a response can be written within that time, because the caller does not read;
    - the unread responses of all connections exceed `MAX_UNREAD_BYTES` with this one;
    - more than `MAX_PIPELINED` requests wait for earlier ones;
    - it is more than `SPARE_CONNECTIONS` above the limit of connections.

    On a connection above the limit, the app refuses tasks, and the connection closes after its first response. So does
    a connection that has reached its age, and each while the service drains; requests that were received are answered
    first. A body that the app reads is bounded by the request's deadline (`app.http.handle`).
    """

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._service: Service = config.app.service  # type: ignore[union-attr]
        timeout_ms: int = self._service.settings.request_timeout_ms
        self._timeout = max(timeout_ms / 1000, MIN_TIMEOUT_SECONDS)
        self._max_connections = file_limits.max_connections(self._service.settings.max_connections, SPARE_CONNECTIONS)
        self._is_surplus = False
        """Whether the connection is above the limit."""
        self._ends_at = math.inf
        """`time.monotonic()` from which a response ends the connection."""
        self.unread = 0
        """Bytes in the write buffer when the caller began to read more slowly than they are written; 0 once it has read
        them."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._running_cycle: RequestResponseCycle | None = None
        """The request that the app processes now; uvicorn's `cycle` is the last one that was received."""
        self._upgrades = UpgradeFilter()
        self._head_bytes = 0
        """Received bytes of an incomplete request head."""
        self._in_head = True
        self._in_request = False
        self._raw_body = False
        self._ignore_input = False
        """Whether further input is ignored and the connection closes after the responses so far. The input is not a
        request, or is the rest of an unread body."""
        self._discarding_input = False
        """Whether all responses are written, and the caller may still send; see `_close_when_answered`."""
        self._cycle_transport: Any = None
        """The transport of uvicorn's cycles. Its `close` is `_close_when_answered`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the limits of connections, and start the keep-alive timer."""
        super().connection_made(transport)
        surplus = len(self.connections) - self._max_connections
        if surplus > SPARE_CONNECTIONS:
            self._warn_of_closed_connections()
            transport.abort()
            return
        if self.client is not None:
            self.client = plain_address(self.client[0]), self.client[1]
        if age := self._service.settings.connection_seconds:
            self._ends_at = time.monotonic() + age * random.uniform(0.5, 1)  # noqa: S311 (spreads the ends)
        self._is_surplus = surplus > 0
        if self._is_surplus:
            self.timeout_keep_alive = min(self.timeout_keep_alive, MAX_IDLE_SURPLUS_SECONDS)
        self._cycle_transport = SimpleNamespace(
            write=transport.write, is_closing=self._is_closing, close=self._close_when_answered
        )
        self._keep_alive()  # a proxy may open a connection before it has a request for it

    def _warn_of_closed_connections(self) -> None:
        if time.monotonic() < self._service.next_connection_warning:
            return
        self._service.next_connection_warning = time.monotonic() + WARNING_SECONDS
        logger.warning("%d connections are open; further ones are closed, those of probes too", len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and notify the running request."""
        self._stop_read_timeout()
        self._stop_write_timeout()
        self._unset_keepalive_if_required()  # the timer would keep this object until it fires
        self.pipeline.clear()
        if self._running_cycle is not None:  # uvicorn notifies only the last request
            self._running_cycle.disconnected = True
            self._running_cycle.message_event.set()
        super().connection_lost(exc)
        # Break the reference cycles: after `gc.freeze()`, which a reload calls, they would never be collected.
        self.scope = self.cycle = self._running_cycle = self._cycle_transport = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the parser, within the limits."""
        if self._ignore_input:
            return
        unfinished = 0
        head_has_begun = self._in_head and self._in_request
        expects_head = self._in_head or not self._in_request
        data = self._upgrades.rename_headers(
            data, in_head=expects_head, head_has_begun=head_has_begun, raw_body=self._raw_body
        )
        if expects_head:
            end = data.find(b"\r\n\r\n")
            head_bytes = (self._head_bytes if self._in_head else 0) + (len(data) if end < 0 else end)
            if head_bytes > MAX_HEAD_BYTES:
                self._reject(431)
                return
            unfinished = head_bytes if end < 0 else 0
        super().data_received(data)
        if self._in_head and not self._ignore_input:
            self._start_read_timeout()
            self._head_bytes = unfinished
        elif self._is_idle() and self.timeout_keep_alive_task is None:
            self._keep_alive()  # uvicorn stopped the timer at the first byte, but no request began

    def _is_last(self) -> bool:
        """Whether the response that begins now ends the connection. Further requests that have begun are answered
        first."""
        ends = self._is_surplus or self._service.lifecycle.is_draining or time.monotonic() >= self._ends_at
        return ends and not self.pipeline and not (self._in_request and self._in_head)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's message is not used)
        """Reject bytes that are not HTTP. Called by uvicorn, also after an error of `on_header`."""
        self._reject(431 if self._in_head and len(self.headers) >= MAX_HEADERS else 400)

    def pause_writing(self) -> None:
        """Start the write timeout: the caller reads its response more slowly than it is written."""
        super().pause_writing()
        self._start_write_timeout()
        self.unread = self.transport.get_write_buffer_size()
        if sum(connection.unread for connection in cast("set[BoundedProtocol]", self.connections)) > MAX_UNREAD_BYTES:
            self.transport.abort()

    def resume_writing(self) -> None:
        """Stop the write timeout: the caller has read nearly all of its response."""
        super().resume_writing()
        self.unread = 0
        if not self._is_closing():
            self._stop_write_timeout()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless a response is still being read."""
        if self._write_timer is not None:
            self._keep_alive()
        else:
            self._close_at_once()

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        super().on_message_begin()
        self._in_head = self._in_request = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the request head. Trailers are dropped, because their number is not limited."""
        if self._in_head:
            if len(self.headers) >= MAX_HEADERS:
                raise ValueError("too many headers")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request to the app, which also reads the body."""
        self._in_head = False
        self._raw_body = not RAW_BODY_HEADERS.isdisjoint(dict(self.headers))
        self._stop_read_timeout()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._close_at_once()
            return
        context = RequestContext(self._service, self._is_surplus, self._is_last)
        self.scope[CONTEXT] = context  # type: ignore[literal-required]
        try:
            super().on_headers_complete()
        except Exception:  # httptools cannot split the target; this answer closes the connection
            self.url, self.app = b"/", Response(status_code=400, headers={"Connection": "close"})
            super().on_headers_complete()
        self.cycle.transport = self._cycle_transport

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """Note the end of the body."""
        self._in_request = False
        self._stop_read_timeout()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the next request, or a timeout for the rest of the body. Called by the request's task."""
        super().on_response_complete()
        if self._ignore_input and not self.pipeline:
            self._unset_keepalive_if_required()
        elif self._in_request and not self._ignore_input:
            self._start_read_timeout()

    def _reject(self, status: int) -> None:
        """Close the connection, because the input is not an HTTP request. Completely received requests are answered
        first."""
        cycle: RequestResponseCycle | None = self.cycle
        in_body = self._in_request and not self._in_head
        if in_body:  # its request gets no response, unless it already has one
            if self.pipeline:
                self.pipeline.popleft()
                cycle = self.pipeline[0][0] if self.pipeline else self._running_cycle
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        if cycle is not None and not (cycle.response_complete or cycle.disconnected):
            cycle.keep_alive = False
            self._ignore_input = True
            self._stop_read_timeout()
            return
        if not in_body:
            headers = (*self.server_state.default_headers, (b"content-length", b"0"), (b"connection", b"close"))
            head = b"".join(b"%s: %s\r\n" % header for header in headers)
            self.transport.write(STATUS_LINE[status] + head + b"\r\n")
        self._ignore_input = True
        self._close_when_answered()

    def _is_idle(self) -> bool:
        """Whether all requests have responses and none has begun."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self._in_request and not self.transport.is_closing()

    def _keep_alive(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _close_at_once(self) -> None:
        """Close the connection, and drop unread responses."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _close_when_answered(self) -> None:
        """Close after the caller has read the response; uvicorn has no timeout for a connection that is closing.

        If the caller still sends, or may send because it did not expect the end, close only our side, and drop its
        input until it closes or the read timeout ends. Closing with unread input resets the connection, and the
        response is lost.
        """
        if self._is_closing():
            return
        if self._in_request or self._ignore_input or time.monotonic() >= self._ends_at:
            self._ignore_input = self._discarding_input = True
            self.pipeline.clear()
            self.flow.resume_reading()
            self.transport.write_eof()
            self._start_read_timeout()
        else:
            self.transport.close()
        if self._write_timer is None and self.transport.get_write_buffer_size():
            self._start_write_timeout()

    def _is_closing(self) -> bool:
        return self._discarding_input or self.transport.is_closing()

    def _start_write_timeout(self) -> None:
        self._stop_write_timeout()
        unread = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._timeout, self._check_write_progress, unread)

    def _check_write_progress(self, unread_before: int) -> None:
        if unread_before - self.transport.get_write_buffer_size() < MIN_WRITTEN_BYTES:
            self.transport.abort()
        else:
            self._start_write_timeout()

    def _stop_write_timeout(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_read_timeout(self) -> None:
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self._timeout, self._end_of_read_timeout)

    def _end_of_read_timeout(self) -> None:
        self._read_timer = None
        # The write timeout closes the connection if the caller does not read.
        if self._discarding_input and self._write_timer is not None:
            self._start_read_timeout()
        else:
            self._close_at_once()

    def _stop_read_timeout(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
