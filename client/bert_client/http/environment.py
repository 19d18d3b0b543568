"""Settings of the environment: a proxy, and files with certificates."""

from __future__ import annotations

import errno
import ipaddress
import os
import ssl
import urllib.request
from pathlib import Path

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


_CERTIFICATES = {
    "SSL_CERT_FILE": "a readable file of PEM certificates",
    "SSL_CERT_DIR": "a directory of PEM certificates, prepared by `openssl rehash`",
}
"""Variables that name the trusted certificates, in httpx's order of precedence, and their expected values."""


def trusted_certificates() -> tuple[str, str] | None:
    """The variable that names the trusted certificates, and its value."""
    return next(((name, value) for name in _CERTIFICATES if (value := os.environ.get(name))), None)


def trusted_tls() -> ssl.SSLContext:
    """TLS with the trusted certificates of the environment.

    Raises:
        ConnectionFailedError: a file of the environment cannot be used; the message has the reason and the remedy.
    """
    variable, value = trusted_certificates() or ("", "")
    try:
        # OpenSSL ignores a directory that is empty or missing.
        if variable == "SSL_CERT_DIR" and not any(any(Path(path).glob("*")) for path in value.split(os.pathsep)):
            next(Path(value).iterdir(), None)  # raises the reason, unless the directory is empty
            raise OSError(errno.ENOENT, "the directory is empty", value)
        return httpx.create_ssl_context()
    except OSError as error:
        key_log = os.environ.get("SSLKEYLOGFILE")
        message = f"the trusted certificates cannot be read ({error})"
        if key_log and error.filename == key_log:
            message = f"SSLKEYLOGFILE={key_log} cannot be written ({error.strerror}); name another file, or unset it"
        elif variable:
            expected = _CERTIFICATES[variable]
            message = f"{variable}={value} cannot be used ({error.strerror}); name {expected}, or unset it"
        raise ConnectionFailedError(message) from error


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
