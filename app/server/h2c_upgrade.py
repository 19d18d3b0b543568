"""A workaround for uvicorn issue 2722: the body of a request with an `Upgrade` header is not read.

Java's HTTP client sends `Upgrade: h2c` with every request. A server may ignore this offer of HTTP/2 (RFC 9110, section
7.8), and uvicorn does. But httptools then takes the body for bytes of the other protocol, so the header is renamed
before httptools sees it.
"""

from __future__ import annotations

import re

_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_RENAMED = b"\r\nX-grade"
"""The new name is as long as the old one, so that no length changes if a body is among the bytes."""
RAW_BODY_HEADERS = frozenset((b"transfer-encoding", b"inference-header-content-length"))
"""Headers that show that a body may not be JSON as a whole: it is chunked, or binary tensors follow the JSON."""
_RAW_BODY = re.compile(b"|".join(RAW_BODY_HEADERS), re.IGNORECASE)
_UNFINISHED = re.compile(rb"\r(\n(\r|u(p(g(r(a(de?)?)?)?)?)?)?)?\Z", re.IGNORECASE)
"""The end of received bytes that may begin an `Upgrade` header, or the end of the request head."""


class UpgradeFilter:
    """Renames the `Upgrade` headers of one connection, also if a header arrives in two parts."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._tail = b""
        """The last bytes that the parser has seen: part of a request head, or the end of a request."""

    def rename_headers(self, data: bytes, *, in_head: bool, head_has_begun: bool, raw_body: bool) -> bytes:
        """The received bytes that the parser may see now.

        Several requests may arrive together, so the bytes may contain a body. JSON has no line that begins like an
        `Upgrade` header, but a chunk of it may, and so may a text in a binary tensor. If there may be either, only the
        current request head is searched.

        Args:
            data: the received bytes.
            in_head: whether `data` begins in a request head, or before one.
            head_has_begun: whether a part of that request head was received before.
            raw_body: whether the current request head has one of `RAW_BODY_HEADERS`.
        """
        data, self._unfinished = self._unfinished + data, b""
        if in_head and b"\r\n\r\n" not in self._tail + data and (unfinished := _UNFINISHED.search(data)):
            data, self._unfinished = data[: unfinished.start()], unfinished[0]
        self._tail = data[-3:]
        if b"\r" not in data or not _UPGRADE.search(data):
            return data
        end = len(data)
        if head_has_begun or _RAW_BODY.search(data) or (raw_body and not in_head):
            end = data.find(b"\r\n\r\n") if in_head else 0
            end = len(data) if end < 0 else end
        return _UPGRADE.sub(_RENAMED, data[:end]) + data[end:]
