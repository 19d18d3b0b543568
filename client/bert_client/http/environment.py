"""Settings of the environment: a proxy, and files with certificates."""

from __future__ import annotations

import ipaddress
import os
import ssl
import urllib.request

import httpx

from bert_client.errors import ConnectionFailedError


def find_proxy(url: httpx.URL) -> tuple[str, str] | None:
    """The variable that names a proxy for this address, and the proxy's URL.

    Loopback addresses and hosts in `NO_PROXY` have none.

    httpx reads the same variables, but also fails because of one that is for other addresses.
    """
    proxies = urllib.request.getproxies()
    scheme = next((scheme for scheme in (url.scheme, "all") if proxies.get(scheme)), None)
    if scheme is None or is_loopback(url.host) or urllib.request.proxy_bypass(url.netloc.decode()):
        return None
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    found = proxies[scheme]
    return variable, found if "://" in found else f"http://{found}"


def trusted_tls() -> ssl.SSLContext:
    """TLS with the trusted certificates of the environment.

    Raises:
        ConnectionFailedError: a file that the environment names for TLS cannot be used.
    """
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        file = error.filename or f"SSL_CERT_FILE={os.environ.get('SSL_CERT_FILE', '')}"
        raise ConnectionFailedError(f"{file} cannot be used for TLS ({error.strerror})") from error


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: `localhost`, 127.0.0.0/8, ::1, or the unspecified address.

    >>> is_loopback("localhost"), is_loopback("127.0.1.1"), is_loopback("example.com")
    (True, True, False)
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f".{host.lower()}".rstrip(".").endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
