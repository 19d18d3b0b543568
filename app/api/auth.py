"""Who may ask: one of the API keys, as a bearer token; where a browser comes, also as a password. And the host names
that the service answers to."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import Request

from app.errors import HostNotAllowedError, UnauthorizedError
from app.settings import Settings

HOW_TO_SEND_A_KEY = "send an API key: Authorization: Bearer <key>"

logger = logging.getLogger(__name__)


def announce(settings: Settings, environ: Mapping[str, str]) -> None:
    """Log whether anybody may ask, and what was perhaps meant to say otherwise."""
    for name, meant in settings.suggest_names(environ).items():
        logger.warning("%s is no setting and has no effect; %s is", name, meant)
    keys = len(settings.api_keys)
    logger.info("the tasks ask for %s", f"one of {keys} API keys" if keys else "no API key")


def check_host(given: str, allowed: Collection[str]) -> None:
    """Check the `Host` header against names such as `example.org` and `*.example.org`.

    An IP address passes: this is against DNS rebinding, which needs a name, and probes use addresses.

    Raises:
        HostNotAllowedError: the header has another name.
    """
    try:
        host = urlsplit(f"//{given}").hostname or ""
        if not any(host == name or (name[0] == "*" and host.endswith(name[1:])) for name in allowed):
            ip_address(host)
    except ValueError:
        raise HostNotAllowedError("BERT_ALLOWED_HOSTS does not list this host") from None


def check_key(request: Request) -> None:
    """Refuse who has no key, if there are any.

    Raises:
        UnauthorizedError: none or a wrong one came.
    """
    scheme, given = _credentials(request)
    if not _is_open(request) and not (scheme == "bearer" and _is_key(request, given.encode("latin-1"))):
        raise UnauthorizedError(
            "this API key is none of the service's" if scheme == "bearer" and given else HOW_TO_SEND_A_KEY
        )


def check_metrics(request: Request) -> None:
    """`check_key`, if the metrics ask for one."""
    if _settings(request).metrics == "key":
        check_key(request)


def check_page(request: Request) -> None:
    """`check_key`, if the pages ask for one. A browser then asks for a name, any, and a password, the key.

    The tasks take no password: a browser would send it along with what other sites make it send.
    """
    scheme, given = _credentials(request)
    if _settings(request).docs != "key" or (scheme == "basic" and _is_key(request, _password(given))):
        return
    try:
        check_key(request)
    except UnauthorizedError as error:
        error.challenge = 'Basic realm="bert-service", charset="UTF-8"'
        raise


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _is_open(request: Request) -> bool:
    return not _settings(request).api_keys


def _credentials(request: Request) -> tuple[str, str]:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Only these: read as Latin-1, a key in UTF-8 may end in what is white space there.
    return scheme.lower(), given.strip(" \t")


def _password(given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _is_key(request: Request, given: bytes) -> bool:
    matches = [secrets.compare_digest(given, key.get_secret_value().encode()) for key in _settings(request).api_keys]
    return any(matches)  # all of them were compared: constant time
