"""Makes connections to this machine bypass the proxies that the environment sets.

The variables `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in lower or upper case, apply
to every connection to another machine. Flower's clients, httpx, gRPC and Ray all read these
variables. They would send a request for 127.0.0.1 to the proxy, for which 127.0.0.1 is the proxy's
own machine. So this process adds loopback to `no_proxy` before it connects or starts another
process. The setting also applies to all its children.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from edgewire.machine.errors import UsageError

MOST_PORT = 65535
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KINDS = ("http", "https", "all")
_BOTH = [name for kind in _KINDS for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_GRPC = "no_grpc_proxy"  # if it is set, gRPC ignores `no_proxy`
unreadable: dict[str, None] = {}  # removed entries of `no_proxy`, such as IPv6 networks


def keep_loopback_direct(address: str = "") -> None:
    """Make loopback reachable without a proxy, in this process and in its children.

    `address`: one more host or HOST:PORT to reach without a proxy, if it is on loopback (such as
    127.0.0.2) or in a network that `no_proxy` lists. This function removes the entries of
    `no_proxy` that httpx cannot read, because httpx would raise an error for every new client, even
    without a proxy.
    """
    host = host_of(address)
    said = dict.fromkeys([*(each for name in _EXCEPTIONS for each in _listed(name)), *unreadable])
    wanted = [*LOOPBACK]
    if is_loopback(host) or any(_contains(each, host) for each in said):
        wanted.append(host)
    unreadable.update(dict.fromkeys(each for each in said if not _is_readable(each)))
    everybody = dict.fromkeys([*(each for each in said if each not in unreadable), *wanted])
    os.environ.update(dict.fromkeys(_EXCEPTIONS, ",".join(everybody)))
    for name in _BOTH:
        if name in os.environ:
            os.environ[name] = os.environ[name].strip()
    if _GRPC in os.environ:
        os.environ[_GRPC] = ",".join(dict.fromkeys([*_listed(_GRPC), *wanted]))


def _contains(entry: str, host: str) -> bool:
    """Return whether an entry of `no_proxy` is a network or an address that contains a host."""
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    return False


def _is_readable(entry: str) -> bool:
    """Return whether httpx can make a client with this entry of `no_proxy`."""
    if entry in LOOPBACK:
        return True
    import httpx  # not at the top: only callers that connect need it

    with _environment({"no_proxy": entry}), suppress(httpx.InvalidURL, ValueError):
        httpx.Client(verify=False).close()
        return "[" not in entry  # httpx takes a single bracket for a name
    return False


def expect_usable_proxies(address: str = "") -> None:
    """Raise `UsageError` with a one-line message for a proxy variable that clients cannot use.

    It checks the proxies of all schemes, because clients parse all of them, even for a connection
    without a proxy. `address`: HOST:PORT of the only machine to which the caller connects, in the
    context `unproxied`. If this address is on loopback, any proxies are accepted.
    """
    if is_loopback(host_of(address)):
        return
    for kind, proxy in _proxies().items():
        try:
            usable = _place(proxy)
        except ImportError as error:
            raise UsageError(
                f"{kind}_proxy is a SOCKS proxy: `pip install socksio`, or unset {kind}_proxy"
            ) from error
        if not usable:
            scheme, slashes, rest = proxy.rpartition("://")
            shown = scheme + slashes + rest.rpartition("@")[2]  # without the user and password
            raise UsageError(f"{kind}_proxy={shown!r}: it must be http://HOST:PORT, or socks5")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Within this context, the variables of all proxies and of their exceptions are `values`."""
    names = [*_BOTH, *_EXCEPTIONS]
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def unproxied(address: str) -> Iterator[None]:
    """If the address is on loopback, the proxy variables are unset within this context."""
    with _environment({}) if is_loopback(host_of(address)) else nullcontext():
        yield


def _proxies() -> dict[str, str]:
    """Return the non-blank proxies that the environment sets, by the URL scheme that uses them."""
    found = getproxies()
    return {kind: found[kind].strip() for kind in _KINDS if found.get(kind, "").strip()}


def _place(proxy: str) -> str:
    """Return a proxy's HOST:PORT or HOST; "" if httpx cannot use the proxy.

    Raises `ImportError` for a SOCKS proxy if httpx lacks a package for it.
    """
    import httpx

    url = proxy if "://" in proxy else f"http://{proxy}"
    with suppress(ValueError, httpx.InvalidURL):
        httpx.Client(proxy=url, verify=False).close()
        parts = urlsplit(url)  # httpx takes a URL without a host, with a blank, or with port 99999
        if parts.hostname and parts.port != 0 and not re.search(r"\s", url):
            return parts.netloc.rpartition("@")[2]
    return ""


def by_proxy(address: str, secure: bool) -> str:
    """Return " by the proxy HOST:PORT" for an address (HOST:PORT) behind a proxy, else ""."""
    host, found = host_of(address), _proxies()
    if is_loopback(host) or proxy_bypass(host):
        return ""
    place = _place(found.get("https" if secure else "http") or found.get("all", ""))
    return f" by the proxy {place}" if place else ""


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, [HOST]:PORT or HOST."""
    host, _, port = address.rpartition(":")
    return (host if host and port.isdecimal() and host[-1] != ":" else address).strip("[]")


def expect_address(address: str, option: str) -> None:
    """Raise `UsageError` with a one-line message unless an address is HOST:PORT or [HOST]:PORT.

    `option`: the option with this address, as it is written before the value.
    """
    host, _, port = address.rpartition(":")
    with suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            given = f"{option}[{host}]:{port}"
            given = f"\"{option}'[{host}]:{port}'\"" if option.endswith("=") else given
            raise UsageError(f"{option}{address}: write an IPv6 address in brackets, as {given}")
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+(%\w+)?\]|[^:/\s\[\]]+):\d{1,5}", address):
        raise UsageError(f"{option}{address}: give HOST:PORT, as in 127.0.0.1:8000 or [::1]:8000")
    if not 0 < int(port) <= MOST_PORT:
        raise UsageError(f"{option}{address}: a port is a number from 1 to {MOST_PORT}")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback name or address of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listed(name: str) -> list[str]:
    return [each.strip() for each in os.environ.get(name, "").split(",") if each.strip()]
