"""Parses JSON bodies into schemas, and explains in the words of JSON why a body does not fit.

FastAPI parses JSON in Python: for a body of 1.8 MB that takes four times as long as pydantic's parser.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import fields
from itertools import islice
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from app import errors
from app.http.problems import shorten
from app.tasks.schemas import UNION_TAGS, TextPair, field_names, unknown_field
from model.errors import InvalidTextError

Schema = TypeVar("Schema", bound=BaseModel)

_VALUES_PER_INPUT, _OTHER_VALUES = 4, 1000
"""Maximum number of JSON values: per input that a request may carry, and in addition. Making the objects of 650,000
empty lists blocks the event loop for 100 ms."""
_UNCOUNTED_BYTES = 64 * 1024
"""A smaller body is parsed in 4 ms at most, so its values are not counted."""
_NOT_SEPARATORS = bytes(set(range(256)) - set(b",[{"))
_MAX_FIELD_NAME = 100
"""Maximum characters of an unknown field's name in an error."""
_PAIR = '{"text": …, "text_pair": …}'
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
_MESSAGES = {
    **dict.fromkeys(("model_type", "dict_type"), "Input should be an object"),
    "list_type": "Input should be an array",
    "dataclass_type": f"must be {_PAIR}",
    "none_required": "Input should be null",
    "too_short": "is empty: send at least one",
}
"""Replacements for pydantic's messages that name Python's types or give no remedy."""


def check_inputs(count: int, max_inputs: int) -> None:
    """Raise TooLargeError if a request has more than `max_inputs` inputs."""
    if count > max_inputs:
        raise errors.TooLargeError(f"the request has {count} inputs, the limit is {max_inputs}; send several requests")


def parse(schema: type[Schema], body: bytes, max_inputs: int) -> Schema:
    """Parse a body into a schema.

    Raises:
        NotJSONError: the body is not JSON in UTF-8, holds NaN, or is nested too deeply.
        InvalidInputError: a string holds a lone surrogate.
        TooLargeError: the body has far more values than a request of `max_inputs` inputs; they are not parsed.
        InvalidRequestError: the JSON does not fit the schema.
    """
    body = body.removeprefix(codecs.BOM_UTF8)  # RFC 8259 allows ignoring it
    if len(body) > _UNCOUNTED_BYTES:
        _check_values(body, max_inputs)
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        _raise_not_json(body, error)
    if not isinstance(given, dict):
        raise errors.InvalidRequestError.at(_not_an_object(given, schema))
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        _raise_invalid(error, schema)


def _not_an_object(given: Any, schema: type[BaseModel]) -> str:
    is_json = isinstance(given, str) and given.lstrip().startswith(("{", "["))  # encoded twice
    kind = "an array" if isinstance(given, list) else "a string" if isinstance(given, str) else "another value"
    needed = ", ".join(f'"{name}": …' for name, field in schema.model_fields.items() if field.is_required())
    return f"Input should be an object, {{{needed}}}; the body is {'JSON in a string' if is_json else kind}"


def _check_values(body: bytes, max_inputs: int) -> None:
    """Raise TooLargeError if a body has more JSON values than a request of `max_inputs` inputs. Values are counted
    without parsing: each but the first of a list or object follows a comma."""
    most = _VALUES_PER_INPUT * max_inputs + _OTHER_VALUES
    if _separators(body) <= most:
        return
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")  # the quotes that remain begin and end strings
    parts = body.split(b'"', 2 * most)
    if len(parts) > 2 * most or _separators(b"".join(parts[::2])) > most:
        raise errors.TooLargeError(
            f"the JSON has more than {most} values; send at most {max_inputs} inputs in a request, and no other fields "
            "than documented"
        )


def _separators(body: bytes) -> int:
    """Number of commas, brackets and braces that begin a value."""
    return len(body.translate(None, _NOT_SEPARATORS))


def _raise_not_json(body: bytes, error: ValueError) -> NoReturn:
    """Raise the reason why a body cannot be parsed. Python's `json` accepts lone surrogates, so it finds them."""
    reason, given = f"Invalid JSON: {error}" if body.strip() else "the body is empty; send JSON", None
    try:
        given = json.loads(body.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        reason = "the body is not UTF-8, the only encoding of JSON"
    except (ValueError, RecursionError):
        pass
    if _has_lone_surrogate(given):
        inputs = given.get("inputs") if isinstance(given, dict) else None
        items = enumerate(inputs) if isinstance(inputs, list) else ()
        having = islice((i for i, one in items if _has_lone_surrogate(one)), errors.MAX_FAULTS)
        places: list[errors.Loc] = [("inputs", i) for i in having]
        places = places or [("inputs",) if _has_lone_surrogate(inputs) else ()]
        raise errors.InvalidInputError([(InvalidTextError(), loc) for loc in places]) from None
    raise errors.NotJSONError(reason) from None


def _has_lone_surrogate(value: Any) -> bool:
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        return True
    except RecursionError:  # `json.loads` accepts slightly deeper nesting
        pass
    return False


def _raise_invalid(error: ValidationError, schema: type[BaseModel]) -> NoReturn:
    details = error.errors(include_url=False, include_input=False, include_context=False)  # keeps texts out of logs
    # A misspelt field comes before the missing one that it explains.
    details.sort(key=lambda detail: (detail["type"], len(detail["loc"])) == ("missing", 1))
    details = details[: errors.MAX_FAULTS]
    raise errors.InvalidRequestError([errors.Fault(_message(d, schema), _loc(d)) for d in details]) from None


def _message(detail: ErrorDetails, schema: type[BaseModel]) -> str:
    """The message in the words of JSON. For an unknown field, it names the known fields or the closest one."""
    message = _MESSAGES.get(detail["type"], detail["msg"])
    if detail["type"] == "too_long":
        message = message.replace("List", "Input").replace(" after validation", "")
    *path, name = detail["loc"] or ("",)
    if (detail["type"], name) == ("string_type", "string"):  # the tag of `schemas.TextOrPair`
        return f"must be a text or {_PAIR}"
    if detail["type"] not in _UNKNOWN_FIELD:
        return message
    is_of_pair = detail["type"] == "unexpected_keyword_argument"
    known = [field.name for field in fields(TextPair)] if is_of_pair else field_names(schema, path)
    if not path and name in field_names(schema, ["parameters"]):
        return "belongs in parameters"
    return unknown_field(str(name)[:_MAX_FIELD_NAME], known)


def _loc(detail: ErrorDetails) -> errors.Loc:
    """The field's path without the tags of unions. An unknown field, which may be named like a tag, stays in it."""
    known = len(detail["loc"]) - (detail["type"] in _UNKNOWN_FIELD)
    tagless = tuple(part for part in detail["loc"][:known] if part not in UNION_TAGS)
    return tagless + tuple(shorten(str(part), _MAX_FIELD_NAME) for part in detail["loc"][known:])
