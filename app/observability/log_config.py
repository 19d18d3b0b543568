"""Logging as text or as JSON lines. No line holds a caller's text."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from typing import Any


class UTCFormatter(logging.Formatter):
    """Writes times in UTC, as `2026-01-31T12:00:00.000Z`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class JSONFormatter(UTCFormatter):
    """Writes one JSON object per line. Google Cloud reads the level as `severity`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "severity": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", None):
            line["request_id"] = request_id
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(UTCFormatter):
    """Writes one line of text, with the request id at its end if the record has one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        """Format a record's message with its request id."""
        message = super().formatMessage(record)
        request_id = getattr(record, "request_id", None)
        return f"{message} [{request_id}]" if request_id else message


class _LossyFile(io.FileIO):
    """A file that loses what cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_stderr() -> io.TextIOWrapper:
    """Standard error, which raises nothing on a full disk or after its reader has ended: only lines are lost."""
    file = io.BufferedWriter(_LossyFile(2, "w", closefd=False))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)


def log_fatal(message: str, log_format: str) -> None:
    """Write one line to standard error that says why the process ends. Works without a logging configuration."""
    record = logging.LogRecord("app", logging.CRITICAL, __file__, 0, message, None, None)
    print(JSONFormatter().format(record) if log_format == "json" else f"bert-serve: {message}", file=sys.stderr)  # noqa: T201


def log_config(log_format: str, level: str) -> dict[str, Any]:
    """A `logging.config.dictConfig` for this service and for uvicorn."""
    formatter = JSONFormatter if log_format == "json" else TextFormatter
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "app": {"level": level.upper()},
            "uvicorn": {"level": "ERROR"},  # `app` logs start and end; malformed requests are not logged
        },
    }
