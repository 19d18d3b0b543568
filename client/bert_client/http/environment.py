"""What the environment names: a proxy, and files with certificates."""

from __future__ import annotations

import ipaddress
import os
import urllib.request

import httpx


def find_proxy(url: httpx.URL) -> tuple[str, str] | None:
    """The variable that names a proxy for this address, and the proxy's URL.

    Loopback addresses and hosts that `NO_PROXY` names have none.

    httpx reads the same variables, but it also fails because of one that is not for this address.
    """
    proxies = urllib.request.getproxies()
    scheme = next((scheme for scheme in (url.scheme, "all") if proxies.get(scheme)), None)
    if scheme is None or is_loopback(url.host) or urllib.request.proxy_bypass(url.netloc.decode()):
        return None
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    found = proxies[scheme]
    return variable, found if "://" in found else f"http://{found}"


def tls_variables() -> str:
    """The variables that name files for TLS and are set, for messages."""
    return ", ".join(name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE") if os.environ.get(name))


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
