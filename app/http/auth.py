"""API keys, sent as a bearer token or, for pages, as a password. Also the allowed host names."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import Request
from starlette.types import Scope

from app.errors import HostNotAllowedError, UnauthorizedError
from app.http.context import service_of
from app.observability import tracing
from app.settings import Settings

logger = logging.getLogger(__name__)


def announce(settings: Settings, environ: Mapping[str, str]) -> None:
    """Log whether API keys are required, and warn of settings that have no effect."""
    settings.warn_of_unknown(environ)
    tracing.warn_if_missing(environ)
    keys = len(settings.api_keys)
    logger.info("API keys: %s", keys or "none, so everyone may call the tasks")


def check_host(scope: Scope, allowed: Collection[str]) -> None:
    """Check the `Host` header, which HTTP/1.1 requires, against names such as `example.org` and `*.example.org`. An
    empty `allowed` allows all.

    IP addresses are allowed: the check prevents DNS rebinding, which needs a name, and health probes use addresses.

    Raises:
        HostNotAllowedError: the header is missing or repeated, or no allowed name matches.
    """
    given = [str(value, "latin-1") for name, value in scope["headers"] if name == b"host"]
    if not given and scope["http_version"] == "1.1":
        raise HostNotAllowedError("HTTP/1.1 requires the header Host")
    if len(given) > 1:
        raise HostNotAllowedError("send one header Host, not several")
    if not allowed:
        return
    try:
        host = urlsplit(f"//{''.join(given)}").hostname or ""
        if not any(host == name or (name[0] == "*" and host.endswith(name[1:])) for name in allowed):
            ip_address(host)
    except ValueError:
        raise HostNotAllowedError("BERT_ALLOWED_HOSTS does not list this host; add it, or call a listed one") from None


def check_key(authorization: str, settings: Settings) -> None:
    """Check the bearer token in the `Authorization` header, if API keys are configured.

    Raises:
        UnauthorizedError: the API key is missing or invalid.
    """
    if not settings.api_keys:
        return
    scheme, given = _credentials(authorization)
    if not (scheme == "bearer" and _is_key(settings, given.encode("latin-1"))):
        raise UnauthorizedError(
            "invalid API key; ask the operator for a valid one"
            if scheme == "bearer" and given
            else "send an API key: Authorization: Bearer <key>"
        )


def check_metrics(request: Request) -> None:
    """Apply `check_key` if the metrics require a key."""
    settings = service_of(request).settings
    if settings.metrics == "key":
        check_key(request.headers.get("authorization", ""), settings)


def check_page(request: Request) -> None:
    """Apply `check_key` if the pages require a key. A browser sends it as the password, with any user name.

    Tasks do not accept a password, because a browser would add it to requests that other sites make it send.
    """
    settings, authorization = service_of(request).settings, request.headers.get("authorization", "")
    scheme, given = _credentials(authorization)
    if settings.docs != "key" or (scheme == "basic" and _is_key(settings, _password(given))):
        return
    try:
        check_key(authorization, settings)
    except UnauthorizedError as error:
        error.challenge = 'Basic realm="bert-service", charset="UTF-8"'
        raise


def _credentials(authorization: str) -> tuple[str, str]:
    scheme, _, given = authorization.partition(" ")
    # Strip only these: in Latin-1, the last byte of a key in UTF-8 may be white space.
    return scheme.lower(), given.strip(" \t")


def _password(given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _is_key(settings: Settings, given: bytes) -> bool:
    matches = [secrets.compare_digest(given, key.get_secret_value().encode()) for key in settings.api_keys]
    return any(matches)  # after all comparisons, so the time does not tell which key matched
