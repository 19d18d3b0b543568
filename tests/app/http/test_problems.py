"""Problem documents: the table of types, and their shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from app import errors
from app.http.problems import INTERNAL_ERROR, PROBLEM_TYPES, problem_response, problem_type
from model.errors import (
    EmptyTextError,
    InvalidTextError,
    NoMaskError,
    TextError,
    TextTooLongError,
    UnknownTargetError,
)

FIELDS = {"type", "title", "status", "detail", "code", "request_id", "error", "errors"}


def body_of(error: Exception) -> dict[str, Any]:
    response = problem_response(error, "id-1")
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(bytes(response.body))
    assert response.status_code == body["status"]
    assert set(body) == FIELDS
    return body


def subclasses(cls: type[Exception]) -> list[type[Exception]]:
    return [found for sub in cls.__subclasses__() for found in (sub, *subclasses(sub))]


@pytest.mark.parametrize("cls", subclasses(errors.ServiceError) + subclasses(TextError))
def test_problem_types_list_every_error(cls: type[Exception]) -> None:
    bases = {errors.LocatedError}
    typed_otherwise = {errors.InvalidInputError, errors.ProcessDiedError, errors.TooManyConnectionsError}
    assert (cls in PROBLEM_TYPES) is (cls not in bases | typed_otherwise)


def test_codes_are_unique() -> None:
    codes = [problem.code for problem in [*PROBLEM_TYPES.values(), INTERNAL_ERROR]]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.NotJSONError("x"), 400, "not_json"),
        (errors.UnauthorizedError("x"), 401, "unauthorized"),
        (errors.TaskNotServedError("x"), 404, "task_not_served"),
        (HTTPException(404), 404, "not_found"),
        (HTTPException(405, headers={"Allow": "POST"}), 405, "method_not_allowed"),
        (errors.TooLargeError("x"), 413, "too_large"),
        (errors.UnsupportedMediaTypeError("x"), 415, "unsupported_media_type"),
        (errors.InvalidRequestError([errors.Fault("m", ("a", 0))]), 422, "invalid_request"),
        (errors.InvalidInputError([(NoMaskError("x"), ("inputs", 0))]), 422, "no_mask"),
        (errors.InvalidInputError([(EmptyTextError(""), ("inputs",))]), 422, "empty_text"),
        (errors.InvalidInputError([(InvalidTextError(), ("inputs",))]), 422, "invalid_text"),
        (errors.InvalidInputError([(TextTooLongError(9, 8), ("inputs",))]), 422, "text_too_long"),
        (errors.InvalidInputError([(UnknownTargetError("x", []), ("parameters",))]), 422, "unknown_target"),
        (errors.QueueFullError(7), 429, "queue_full"),
        (errors.InferenceError(), 500, "inference_failed"),
        (errors.UnavailableError("draining"), 503, "draining"),
        (errors.UnavailableError("reloading"), 503, "reloading"),
        (errors.DeadlineExceededError(), 504, "deadline_exceeded"),
        (errors.DeadlineUnreachableError(7), 504, "deadline_unreachable"),
    ],
)
def test_error_has_its_status_and_code(error: Exception, status: int, code: str) -> None:
    body = body_of(error)
    assert (body["status"], body["code"], body["request_id"]) == (status, code, "id-1")
    assert body["error"] == body["detail"]


@pytest.mark.parametrize(
    "error",
    [
        errors.QueueFullError(7),
        errors.UnavailableError("loading", retry_after=7),
        errors.UnavailableError("reloading", retry_after=7),
        errors.DeadlineUnreachableError(7),
    ],
)
def test_problem_of_a_temporary_error_has_retry_after(error: Exception) -> None:
    assert problem_response(error, "").headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("GET", "/health", "GET /health/live, /health/ready"),
        ("GET", "/readyz", "GET /health/ready"),
        ("POST", "/v1/models/sentiment:predict", "POST /v2/models/sentiment/infer, "),
        ("GET", "/v2/models/sentiment/config", "GET /v2/models/{model}, "),
        ("POST", "/hf/sentiment", "POST /hf/fill-mask, /hf/text-classification"),
        ("POST", "/sentiment/", "POST /sentiment"),
        ("GET", "/openapi.yaml", "GET /openapi.json"),
        ("POST", "/invocations", "POST /fill-mask, /next-sentence, /sentiment, /classify"),
    ],
)
async def test_problem_of_a_wrong_path_names_the_nearest(serve: Any, method: str, path: str, near: str) -> None:
    async with serve() as service:
        answer = await service.client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"].startswith(f"no such path; see {near}")


async def test_problem_of_a_request_with_a_query_says_that_it_is_not_read(serve: Any) -> None:
    json = {"Content-Type": "application/json"}
    async with serve() as service:
        for method, headers in (("GET", json), ("POST", json), ("POST", {})):
            answer = await service.client.request(method, "/sentiment?inputs=a%20secret", headers=headers)
            assert answer.json()["detail"].endswith("; the query string is not read: its values belong in the JSON")
            assert "secret" not in answer.text


def test_problem_detail_is_shortened() -> None:
    body = body_of(errors.InvalidInputError([(UnknownTargetError("x" * 9999, ["x"] * 9999), ("parameters",))]))
    assert len(body["detail"]) <= 500


def test_problem_type_of_an_unlisted_subclass_is_its_parents() -> None:
    class SpecialError(errors.TooLargeError):
        pass

    assert problem_type(SpecialError("x")).status == 413
