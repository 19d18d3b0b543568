"""The common base of `BertClient` and `AsyncBertClient`: options and connections."""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import httpx

from bert_client.errors import ConnectionFailedError
from bert_client.http.environment import find_proxy, trusted_tls
from bert_client.http.exchange import Exchange, Send
from bert_client.http.retry import RetryPolicy

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_TIMEOUT = 1_000_000.0
"""Maximum timeout in seconds, close to the limits of sockets and of the service's header."""
READ_GRACE = 2.0
"""Seconds that a connection waits beyond the timeout, so that the service can respond with 504."""

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
Sleep = TypeVar("Sleep")
Headers = Sequence[tuple[bytes, bytes]]


class BaseClient(Generic[Http, Sleep]):
    """The options and connections of a client."""

    _here: Callable[[], Any]
    """Returns the id of the process, or the event loop: connections cannot be used in another."""
    _connect: Callable[[], Http]
    """Opens new connections."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        concurrency: int = 4,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (it is frozen)
        http: Http | None = None,
        sleep: Sleep | None = None,
    ) -> None:
        """Check the options. Connections are opened by the first request.

        Args:
            base_url: Address of the service, `http://` or `https://`. A proxy is used if the environment names one, but
                never for a loopback address.
            api_key: Sent as `Authorization: Bearer …`.
            timeout: Seconds for one request, also sent to the service. The client gives up after about as much time
                without a byte, so a response that arrives slowly may take longer.
            concurrency: Requests that are sent at once for one list or stream.
            retry: How often and how long refused or failed requests are repeated.
            http: An httpx client of yours, which sends the requests with its own headers, certificates, proxies and
                event hooks. Only its timeout is replaced, and `close` leaves it open. Use it in the process and the
                event loop that made it: its connections must not be used after a fork, and it cannot be pickled.
            sleep: Replaces the waiting between attempts.

        Raises:
            ValueError: no request can be sent with these options; the message has the remedy.
        """
        if not (isinstance(timeout, int | float) and 0 < timeout <= MAX_TIMEOUT):
            raise ValueError(f"timeout is {timeout!r}: give seconds, above 0 and at most {MAX_TIMEOUT:,.0f}")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency!r}: give 1 or more")
        url = service_url(base_url)
        self._url = url.copy_with(userinfo=b"")  # messages show the address
        self._concurrency = concurrency
        self._given_http: Http | None = http
        self._is_closed = False
        self._sleep = sleep
        proxy = None if http else find_proxy(url)
        self._base_url = str(self._url).rstrip("/")
        self._exchange = Exchange(retry, time.monotonic, _jitter, self._base_url, proxy[0] if proxy else None)
        self._connections: dict[Any, Http] = {}
        self._headers = {"X-Request-Timeout-Ms": str(max(int(timeout * 1000), 1)).encode(), **_authorization(api_key)}
        self._http_options: dict[str, Any] = {
            **({"auth": (url.username, url.password)} if url.userinfo else {}),
            "timeout": httpx.Timeout(timeout, read=timeout + READ_GRACE, pool=None),  # calls may wait for a connection
        }

    def __getstate__(self) -> dict[str, Any]:
        """The options. A process that unpickles the client opens new connections."""
        exchange = replace(self._exchange, info=None)  # its expiry is a time of this machine's clock
        return {**self.__dict__, "_connections": {}, "_exchange": exchange}

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed, or the `http` that it was given: requests then raise ConnectionFailedError."""
        return self._is_closed or (self._given_http is not None and self._given_http.is_closed)

    def _http(self) -> Http:
        """The connections of this process or event loop."""
        if self.is_closed:
            raise ConnectionFailedError("the client is closed")
        http = self._given_http or self._connections.get(self._here())
        return http or self._connections.setdefault(self._here(), self._connect())

    def _arguments(self, send: Send) -> dict[str, Any]:
        """Arguments of httpx's `request`."""
        headers = dict(self._headers)
        if send.body is not None:
            headers["Content-Type"] = b"application/json"
        if send.request_id is not None:
            headers["X-Request-ID"] = send.request_id.encode()
        url = self._base_url + send.path
        return {"method": send.method, "url": url, "content": send.body, "headers": headers, **self._http_options}


def open_http(
    client: Callable[..., Http], url: httpx.URL, tls: ssl.SSLContext | None = None, headers: Headers = ()
) -> Http:
    """Open an httpx client with the proxy of the environment.

    Args:
        client: `httpx.Client` or `httpx.AsyncClient`.
        url: The address to connect to.
        tls: Replaces the trusted certificates of the environment.
        headers: Sent with every request.

    Raises:
        ConnectionFailedError: an environment variable cannot be used.
    """
    proxy = find_proxy(url)
    try:
        if proxy:
            _check_address(httpx.URL(proxy[1]))
        verify = (tls or trusted_tls()) if url.scheme == "https" else False
        return client(headers=headers, verify=verify, proxy=proxy and proxy[1], trust_env=False)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        if not proxy:  # for example an import while the interpreter shuts down
            raise ConnectionFailedError(f"{url}: no connection can be opened: {error}") from error
        raise ConnectionFailedError(f"{url}: the proxy in {proxy[0]} cannot be used: {error}") from error


def _jitter() -> float:
    return random.random()  # noqa: S311 (a pickle of `random.random` has the state of the generator)


def without_userinfo(url: str) -> str:
    """The address for messages, without a name and password before the host."""
    return re.sub(r"^([a-z]+:/*)?.*@", r"\1", url, flags=re.IGNORECASE)


def service_url(given: str) -> httpx.URL:
    """Parse the address of a service. Raises ValueError if it is none; the message shows no password."""
    shown = without_userinfo(given)
    if not given.lower().startswith(("http://", "https://")):
        raise ValueError(f"{shown!r} is not an address of a service; it must begin with http:// or https://")
    try:
        url = httpx.URL(given)
        _check_address(url)
    except (httpx.InvalidURL, UnicodeError) as error:
        reason = "percent-encode the special characters of its name and password" if "@" in given else error
        raise ValueError(f"{shown!r} is not an address of a service: {reason}") from None
    if url.query or url.fragment:
        raise ValueError(f"{shown!r} is not an address of a service: leave out what follows the path")
    return url


def _check_address(url: httpx.URL) -> None:
    """Raise InvalidURL or UnicodeError if no connection can be opened to the host and port."""
    url.host.encode("idna")  # as connecting does
    if not url.host:
        raise httpx.InvalidURL("it names no host")
    if url.port is not None and not 0 < url.port < 2**16:
        raise httpx.InvalidURL("a port is a number from 1 to 65535")


def _authorization(api_key: str | None) -> dict[str, bytes]:
    if not api_key:
        return {}
    if not api_key.isprintable():
        raise ValueError("the API key has characters that are not printable: give it as the service has it")
    return {"Authorization": f"Bearer {api_key}".encode()}
