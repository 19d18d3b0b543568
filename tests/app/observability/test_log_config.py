"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator

import pytest

from app.observability.log_config import JSONFormatter, TextFormatter, log_config


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("app.x", logging.ERROR, __file__, 1, "went %s", ("wrong",), None)
    made.__dict__.update(extra)
    return made


def test_json_lines_hold_the_request_id() -> None:
    line = json.loads(JSONFormatter().format(record(request_id="r1")))
    assert (line["level"], line["severity"], line["message"]) == ("error", "ERROR", "went wrong")
    assert line["request_id"] == "r1"


def test_json_lines_hold_the_facts_of_a_request_as_fields() -> None:
    line = json.loads(JSONFormatter().format(record(facts={"status": 200, "milliseconds": 1.5})))
    assert (line["message"], line["status"], line["milliseconds"]) == ("went wrong", 200, 1.5)


def test_json_lines_hold_the_traceback_in_one_line() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        line = JSONFormatter().format(record(exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError" in json.loads(line)["exception"]


def test_text_lines_end_with_the_request_id() -> None:
    assert TextFormatter().format(record(request_id="r1")).endswith("went wrong [r1]")
    assert TextFormatter().format(record()).endswith("went wrong")


def test_format_follows_the_setting() -> None:
    assert log_config("json", "info")["formatters"]["line"]["()"] is JSONFormatter
    assert log_config("text", "error")["loggers"]["app"]["level"] == "ERROR"


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs a test in a time zone that is not UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_log_times_are_utc_in_both_formats() -> None:
    at = record(created=1_769_860_800.25, msecs=250.0)
    assert json.loads(JSONFormatter().format(at))["time"] == "2026-01-31T12:00:00.250Z"
    assert TextFormatter().format(at).startswith("2026-01-31T12:00:00.250Z ERROR app.x: ")
