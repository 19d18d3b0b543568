"""Requests that schemathesis makes of our own OpenAPI document: what is answered is what is documented.

For each operation, texts and numbers at the edges of its schema and beyond. No answer is a 5xx, and each has a
status, a media type, headers and a body that the document knows.
"""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from app.http.application import create_app
from app.settings import Settings
from tests.app.process import PATIENCE, Process

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
    unsupported_method,
]
"""All but that every request which fits the schema succeeds: it cannot say that a text has a mask."""
EXAMPLES = 80
"""Of each operation, beside those that stand for one rule of the schema each."""


@schemathesis.openapi.from_dict(create_app(Settings()).openapi()).parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_answers_are_the_documented_ones(case: Any, service: Process) -> None:
    if "x-schemathesis-unknown-property" in case.headers:
        return  # callers and proxies may add any header
    answer = case.call_and_validate(service.url, checks=CHECKS, timeout=PATIENCE)
    has_deadline = "X-Request-Timeout-Ms" in case.headers or "/infer" in case.path  # which has the parameter timeout
    asked_for = answer.status_code == 504 and has_deadline
    assert answer.status_code < 500 or asked_for, answer.text
