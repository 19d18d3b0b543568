"""Logging as text or as JSON lines. No line holds a caller's text."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress
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


def log_fatal(message: str, log_format: str) -> None:
    """Write one line to standard error that says why the process ends. Works without a logging configuration.

    If it cannot be written, standard error is closed: Python 3.13 would try again at its exit, and exit with 120.
    """
    record = logging.LogRecord("app", logging.CRITICAL, __file__, 0, message, None, None)
    line = JSONFormatter().format(record) if log_format == "json" else f"bert-serve: {message}"
    try:
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError):  # a full disk, a closed stream
        with suppress(OSError, ValueError):
            sys.stderr.close()


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
            "uvicorn": {"level": "ERROR"},  # `app` logs start, end and malformed requests itself
        },
    }
