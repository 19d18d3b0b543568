"""Where a client's connections lead, and in which process and event loop they are used."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bert_client import AsyncBertClient, BertClient, BertServiceError, ConnectionFailedError, LabelResult, RetryPolicy
from bert_client.http.environment import find_proxy
from tests.client.echo import Echo, serve, serve_tls

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with serve() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def label(result: LabelResult) -> str:
    return result.predictions[0].label


def failure(url: str, **options: Any) -> BertServiceError:
    """The error of a client's first request."""
    with pytest.raises(BertServiceError) as raised, BertClient(url, **({"retry": ONCE} | options)) as asked:
        asked.sentiment("a")
    return raised.value


# --- processes and event loops

client: Any


def ask(text: str) -> str:
    return label(client.sentiment(text))


def ask_in_a_loop(text: str) -> str:
    return label(asyncio.run(client.sentiment(text)))


@contextmanager
def unclosed_connections_allowed() -> Iterator[None]:
    """A loop that ends leaves connections open; they are closed when they are collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        globals()["client"] = None
        gc.collect()


def test_client_answers_right_in_threads(echo: Echo) -> None:
    texts = [f"text {n}" for n in range(400)]
    with BertClient(echo.url) as asked, ThreadPoolExecutor(16) as threads:
        assert [label(result) for result in threads.map(asked.sentiment, texts)] == texts


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_client_answers_right_in_forked_processes(echo: Echo) -> None:
    global client
    texts = [f"text {n}" for n in range(400)]
    with BertClient(echo.url) as client:
        assert [label(result) for result in client.sentiment(texts)] == texts  # opens connections
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert pool.map(ask, texts, chunksize=5) == texts
        assert [label(result) for result in client.sentiment(texts)] == texts


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_client_method_is_sent_to_other_processes(echo: Echo, method: str) -> None:
    texts = [f"text {n}" for n in range(40)]
    with BertClient(echo.url) as asked:
        assert label(asked.sentiment("first")) == "first"
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert list(map(label, pool.map(asked.sentiment, texts))) == texts


def test_client_limits_are_not_sent_to_other_processes(echo: Echo) -> None:
    with BertClient(echo.url) as asked:
        asked.sentiment(["a", "b"])
        copy: BertClient = pickle.loads(pickle.dumps(asked))
    with copy:
        copy.sentiment(["a", "b"])
    assert echo.paths == ["/info", "/sentiment"] * 2


@pytest.mark.parametrize("is_used", [True, False])
async def test_client_that_is_closed_raises(echo: Echo, is_used: bool) -> None:
    with BertClient(echo.url) as asked:
        assert not is_used or asked.sentiment("a")
        assert not asked.is_closed
    assert asked.is_closed
    with pytest.raises(ConnectionFailedError, match="the client is closed"):
        asked.sentiment("a")
    async with AsyncBertClient(echo.url) as asynchronous:
        assert not is_used or await asynchronous.sentiment("a")
        assert not asynchronous.is_closed
    assert asynchronous.is_closed
    with pytest.raises(ConnectionFailedError, match="the client is closed"):
        await asynchronous.sentiment("a")
    assert len(echo.paths) == 2 * is_used


async def test_client_uses_a_given_http_as_it_is_and_does_not_close_it(echo: Echo) -> None:
    sent: list[httpx.Request] = []

    async def send(request: httpx.Request) -> None:
        sent.append(request)

    options: dict[str, Any] = {"base_url": "http://other.example/a", "headers": {"X-Tenant": "blue"}, "timeout": 5}
    with httpx.Client(**options, event_hooks={"request": [sent.append]}) as http:
        with BertClient(echo.url, http=http, api_key="k", timeout=7) as asked:
            assert label(asked.sentiment("a")) == "a"
        assert (asked.is_closed, http.is_closed) == (True, False)
        again = BertClient(echo.url, http=http)
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(again)
    assert again.is_closed
    with pytest.raises(ConnectionFailedError, match="the client is closed"):
        again.sentiment("a")
    async with httpx.AsyncClient(**options, event_hooks={"request": [send]}) as http_async:
        async with AsyncBertClient(echo.url, http=http_async, api_key="k", timeout=7) as asynchronous:
            assert label(await asynchronous.sentiment("a")) == "a"
        assert (asynchronous.is_closed, http_async.is_closed) == (True, False)
    for request in sent:
        headers = [request.headers[name] for name in ("X-Tenant", "Authorization", "X-Request-Timeout-Ms")]
        assert headers == ["blue", "Bearer k", "7000"]
        assert request.extensions["timeout"]["read"] == 9
    assert len(sent) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_async_client_answers_right_in_forked_processes(echo: Echo) -> None:
    global client
    texts = [f"text {n}" for n in range(60)]
    with unclosed_connections_allowed():
        client = AsyncBertClient(echo.url)
        assert ask_in_a_loop("first") == "first"
        with multiprocessing.get_context("fork").Pool(3) as pool:
            assert pool.map(ask_in_a_loop, texts) == texts


def test_async_client_is_used_in_a_second_event_loop(echo: Echo) -> None:
    global client
    with unclosed_connections_allowed():
        client = AsyncBertClient(echo.url)
        assert [ask_in_a_loop(text) for text in "abcd"] == list("abcd")
        assert len(client._connections) == 1  # those of closed loops are dropped


# --- proxies


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("HTTP_PROXY", "http://example.com"),
        ("http_proxy", "http://example.com"),
        ("ALL_PROXY", "https://example.com:8443"),
        ("HTTPS_PROXY", "https://example.com"),
    ],
)
def test_find_proxy_reads_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str, url: str) -> None:
    monkeypatch.setenv(variable, "proxy.example:3128")
    assert find_proxy(httpx.URL(url)) == (variable, "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "other.com, example.com")
    assert find_proxy(httpx.URL(url)) is None


def test_find_proxy_prefers_the_variable_of_the_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:1080/")  # as GNOME sets it, beside this:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128/")
    assert find_proxy(httpx.URL("http://example.com")) == ("http_proxy", "http://127.0.0.1:3128/")


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "api.localhost", "127.0.0.1", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_find_proxy_has_none_for_loopback(monkeypatch: pytest.MonkeyPatch, host: str, scheme: str) -> None:
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://proxy.example:3128")
    assert find_proxy(httpx.URL(f"{scheme}://{host}:8000")) is None


def test_find_proxy_has_one_for_names_that_only_look_like_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    for host in ("notlocalhost", "localhost.example.com", "128.0.0.1", "127.example.com"):
        assert find_proxy(httpx.URL(f"http://{host}")) is not None


@pytest.mark.parametrize(
    "proxy",
    ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "socks://127.0.0.1:9", "http://proxy:80x", "http://[", "???"],
)
def test_client_reaches_loopback_whatever_the_proxy(echo: Echo, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, proxy)
    with BertClient(echo.url, retry=ONCE) as asked:
        assert label(asked.sentiment("a")) == "a"


async def test_clients_use_the_proxy_of_the_environment(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", echo.url)
    monkeypatch.setenv("HTTPS_PROXY", "socks://nowhere:x")  # this and the next are not used
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with BertClient("http://bert.example", retry=ONCE) as asked:
        assert label(asked.sentiment("a")) == "a"
    async with AsyncBertClient("http://bert.example", retry=ONCE) as asynchronous:
        assert label(await asynchronous.sentiment("a")) == "a"
    assert echo.paths == ["http://bert.example/sentiment"] * 2


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        pytest.param(
            "socks5://127.0.0.1:9",
            "socksio",
            marks=pytest.mark.skipif("__import__('importlib').util.find_spec('socksio')"),
        ),
        ("socks://127.0.0.1:9", "scheme"),
        ("ftp://127.0.0.1:9", "scheme"),
        ("http://user:secret@proxy:80x", "port"),
        ("http://user:secret@proxy:99999", "port"),
        ("http://user:secret@a..b:1", "idna"),
    ],
)
@pytest.mark.parametrize("variable", ["ALL_PROXY", "http_proxy"])
def test_client_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str, reason: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    error = str(failure("http://bert.example"))
    assert re.search(rf"the proxy in {variable} cannot be used: .*(?i:{reason})", error)
    assert "secret" not in error


def test_client_failure_through_a_proxy_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    error = failure("http://bert.example")
    assert isinstance(error, ConnectionFailedError)
    assert "refused, through the proxy in HTTP_PROXY; NO_PROXY lists" in str(error)


def test_client_refusal_by_a_proxy_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(lambda _: 407) as echo:
        monkeypatch.setenv("HTTP_PROXY", echo.url)
        error = str(failure("http://bert.example"))
    assert re.search(r"407, not as .*, through the proxy in HTTP_PROXY", error)


@pytest.mark.parametrize(
    ("variable", "name", "reason"),
    [
        ("SSL_CERT_FILE", "missing", "No such file or directory"),
        ("SSL_CERT_FILE", "text", "no certificate or crl found"),
        ("SSLKEYLOGFILE", "none/keys", "No such file"),
    ],
)
def test_client_certificates_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, name: str, reason: str
) -> None:
    (tmp_path / "text").write_text("no certificate")
    monkeypatch.setenv(variable, str(tmp_path / name))
    error = failure("https://bert.example")
    assert isinstance(error, ConnectionFailedError)
    assert re.search(rf"{tmp_path / name} cannot be used for TLS \(.*{reason}", str(error))


def test_client_https_to_a_plain_port_says_so(echo: Echo) -> None:
    address = echo.url.replace("http://", "https://")
    error = failure(address)
    assert isinstance(error, ConnectionFailedError)
    assert re.match(rf"{address}: .*; the service speaks http://$", str(error))


def test_client_https_to_a_plain_proxy_says_so(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", echo.url.replace("http://", "https://"))
    error = failure("http://bert.example")
    assert isinstance(error, ConnectionFailedError)
    assert re.search(r"proxy in HTTP_PROXY; .*; the proxy speaks http://$", str(error))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_client_certificate_that_is_not_trusted_is_an_error_at_once(tmp_path: Path) -> None:
    pauses: list[float] = []
    with serve_tls(tmp_path) as echo:
        error = failure(echo.url, retry=RetryPolicy(), sleep=pauses.append)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert pauses == []


def test_client_proxy_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    with serve(lambda _: 503) as echo:
        monkeypatch.setenv("HTTPS_PROXY", echo.url)
        error = failure("https://bert.example", retry=RetryPolicy(attempts=3), sleep=pauses.append)
    assert isinstance(error, ConnectionFailedError)
    assert "503" in str(error)
    assert (echo.paths, len(pauses)) == (["bert.example:443"] * 3, 2)
