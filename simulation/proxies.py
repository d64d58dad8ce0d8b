"""Proxies: none for this machine itself; for others those that the environment names.

`http_proxy`, `https_proxy`, `all_proxy` and `no_proxy` hold for every connection to another
machine, in small letters or in capitals. Flower's clients, httpx, gRPC and Ray all read these, and
so would send what is for 127.0.0.1 to the proxy, which has another 127.0.0.1. So before anything is
connected or started `no_proxy` names loopback, in this process and in all that it starts.
"""

from __future__ import annotations

import ipaddress
import os
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from .errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_GRPC = "no_grpc_proxy"  # where it is set gRPC does not look at the others


def keep_loopback_direct(address: str = "") -> None:
    """See to it that loopback is reached by no proxy, here and in processes that are started.

    `address`: HOST:PORT, or a host, that may be a name of loopback as well (127.0.0.2, say).
    """
    host = host_of(address)
    wanted = [*LOOPBACK, host] if is_loopback(host) else LOOPBACK
    said = [each for name in _EXCEPTIONS for each in _listed(name)]
    everybody = ",".join(dict.fromkeys([*said, *wanted]))
    os.environ.update(dict.fromkeys(_EXCEPTIONS, everybody))
    if _GRPC in os.environ:
        os.environ[_GRPC] = ",".join(dict.fromkeys([*_listed(_GRPC), *wanted]))


def expect_usable_proxies() -> None:
    """Raise `UsageError`, one line, for a proxy in the environment that no client here can use."""
    for kind, proxy in getproxies().items():
        if kind not in ("http", "https", "all"):
            continue
        scheme = urlsplit(proxy if "://" in proxy else f"http://{proxy}").scheme
        if scheme in ("socks5", "socks5h") and find_spec("socksio") is None:
            raise UsageError(
                f"{kind}_proxy is a SOCKS proxy: `pip install socksio`, or unset {kind}_proxy"
            )
        if scheme not in ("http", "https", "socks5", "socks5h"):
            raise UsageError(f"{kind}_proxy={scheme}://...: it must be http://HOST:PORT, or socks5")


def proxy_of(address: str, secure: bool) -> str:
    """Return the proxy by which an address (HOST:PORT) is reached: HOST:PORT; "" for none."""
    host = host_of(address)
    if is_loopback(host) or proxy_bypass(host):
        return ""
    proxies = getproxies()
    found = proxies.get("https" if secure else "http") or proxies.get("all", "")
    return found.rpartition("@")[2].rpartition("://")[2].rstrip("/")  # never its password


def by_proxy(address: str, secure: bool) -> str:
    """Return " by the proxy HOST:PORT" for an address that is reached by one, else ""."""
    found = proxy_of(address, secure)
    return f" by the proxy {found}" if found else ""


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, [HOST]:PORT or HOST."""
    host, _, port = address.rpartition(":")
    return (host if host and port.isdecimal() and host[-1] != ":" else address).strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its own name for itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listed(name: str) -> list[str]:
    return [each.strip() for each in os.environ.get(name, "").split(",") if each.strip()]
