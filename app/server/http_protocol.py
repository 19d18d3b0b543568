"""Uvicorn's HTTP protocol with the bounds that it lacks: nobody holds a connection by sending slowly; and
with answers of our own to what is no request, and to requests that have no chance."""

from __future__ import annotations

import asyncio
import re
import secrets
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.admission import refusal
from app.api.middleware import logs_requests
from app.api.problems import problem_response
from app.observability import tracing
from app.observability.request_ids import request_id_of

MAX_HEAD_BYTES = 64 * 1024
SLOWEST_BYTES = 64 * 1024
"""Of an answer, so much must be read within the request timeout."""
LEAST_SECONDS = 1.0
"""A shorter request timeout bounds requests, not the time to send a head or to read so many bytes."""

MAX_PIPELINED = 1000
"""Requests of one connection that wait for the answers to those before them."""

_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_UNFINISHED = re.compile(rb"\r(\n(\r|u(p(g(r(a(de?)?)?)?)?)?)?)?\Z", re.IGNORECASE)
"""What may be the beginning of an upgrade, or of the end of the head."""

_ANSWERED: Any = SimpleNamespace(response_started=True, response_complete=True, message_event=asyncio.Event())
"""In place of uvicorn's cycle, for a request that was answered without the app."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes the connection if a request's head is too large, or is not there within the request timeout; and
    if the rest of a body, whose request was answered without it, keeps on coming for as long; and if an answer
    is hardly read; and if too many requests come before they are answered.

    A body that is awaited is bounded by the request's deadline (`json_route`).
    """

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._app: FastAPI = config.app  # type: ignore[assignment]
        self._app_may_be_passed_over = not logs_requests() and not tracing.enabled()
        timeout_ms: int = self._app.state.settings.request_timeout_ms
        self._seconds = max(timeout_ms / 1000, LEAST_SECONDS)
        self._answering: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Of a head that is not whole, what has come."""
        self._in_head = True
        self._in_request = False
        self._chunked = False
        self._ignore_input = False
        """Whether what came was no request, so that the connection ends with the answers to those before it."""
        self._held = b""
        """The end of what has come of a head, if it may be the beginning of a header that is passed over."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._start_read_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_read_timeout()
        self._leave_reader()
        self._unset_keepalive_if_required()  # or else a connection that was reset is remembered for so long
        self.pipeline.clear()
        if self._answering is not None:  # uvicorn tells the last request only
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._ignore_input:
            return
        unfinished = 0
        data = self._without_upgrade(data)
        if self._in_head or not self._in_request:
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
            self._keep_alive()  # no request began, but uvicorn took the timer away

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's words)
        """To what is no HTTP."""
        self._reject(400)

    def pause_writing(self) -> None:
        """The caller does not read its answer as fast as it comes."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The caller has read nearly all."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._leave_reader()

    def timeout_keep_alive_handler(self) -> None:
        """No request came for long. While an answer is being read, none is expected."""
        if self._reading is not None:
            self._keep_alive()
        else:
            self._end()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = self._in_request = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the head; nobody reads trailers, and there is no end to them."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        self._stop_read_timeout()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._close()
            return
        response = refusal(self._app, self.url, self.scope) if self._may_refuse() else None  # type: ignore[arg-type]
        if response is None:
            self._unset_keepalive_if_required()  # set if one that came with it in a packet was refused
            self.scope["pipeline"] = self.pipeline  # type: ignore[typeddict-unknown-key]
            super().on_headers_complete()
            return
        self.cycle = _ANSWERED
        self._write(response)
        self.on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """The body is there."""
        self._in_request = False
        self._stop_read_timeout()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called by the request's task."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        if self._in_request and not self._ignore_input:
            self._start_read_timeout()

    def _without_upgrade(self, data: bytes) -> bytes:
        """Heads that offer no other protocol. Java's client offers HTTP/2 to everyone, and then llhttp does
        not read the body of a request that is answered all the same (RFC 9110, 7.8).

        As many bytes: among several requests, a body may pass here as well. JSON has no such line, but chunks
        of it may begin so; where there may be any, the head that has begun is all that is looked into.
        """
        data, self._held = self._held + data, b""
        in_head = self._in_head or not self._in_request
        if in_head and b"\r\n\r\n" not in data and (unfinished := _UNFINISHED.search(data)):
            data, self._held = data[: unfinished.start()], unfinished[0]
        if b"\r" not in data or not _UPGRADE.search(data):
            return data
        begun = self._in_head and self._in_request  # with headers that are not in these data
        end = len(data)
        if begun or b"chunked" in data.lower() or (self._chunked and not in_head):
            end = data.find(b"\r\n\r\n") if in_head else 0
            end = len(data) if end < 0 else end
        return _UPGRADE.sub(b"\r\nX-grade", data[:end]) + data[end:]

    def _reject(self, status: int) -> None:
        """Close, and say why if nothing else is to be answered. What came whole before is answered first."""
        cycle: RequestResponseCycle | None = self.cycle
        broken = self._in_request and not self._in_head
        if broken and self.pipeline:
            self.pipeline.popleft()  # the rest of its body will not be read
            cycle, broken = self.pipeline[0][0] if self.pipeline else self._answering, False
        if cycle is not None and not broken and not cycle.response_complete:
            cycle.keep_alive = False
            self._ignore_input = True
            self._stop_read_timeout()
            return
        if cycle is None or not (broken and cycle.response_started):
            request_id = request_id_of(self.headers) if broken else secrets.token_hex(16)
            response = problem_response(HTTPException(status), request_id)
            response.headers["X-Request-ID"] = request_id
            response.headers["Connection"] = "close"
            self._write(response)
        if cycle is not None and broken:
            cycle.disconnected = True  # the app shall not answer as well
            cycle.scope["rejected_with"] = status  # type: ignore[typeddict-unknown-key]
        self._close()

    def _write(self, response: Response) -> None:
        headers = (*self.server_state.default_headers, *response.raw_headers)
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body))

    def _may_refuse(self) -> bool:
        """Whether an answer can be written here and now, and nobody else has to see it."""
        return (
            self._app_may_be_passed_over
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and (self.cycle is None or self.cycle.response_complete)
            and self.timeout_keep_alive_task is None  # one in a packet: thousands would hold up all others
            and not self.flow.write_paused
        )

    def _is_idle(self) -> bool:
        """Whether all that was asked is answered, and nothing more is coming."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self._in_request and not self.transport.is_closing()

    def _keep_alive(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _end(self) -> None:
        """Close; what the caller has not read by now it will not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _close(self) -> None:
        """Once all is read; nobody else looks after a connection that is closing."""
        self.transport.close()
        if self._reading is None and self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._leave_reader()
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self._seconds, self._look_at_reader, unread)

    def _look_at_reader(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < SLOWEST_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    def _leave_reader(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _start_read_timeout(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self._end)

    def _stop_read_timeout(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
