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
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from edgewire.machine.errors import UsageError

MOST_PORT = 65535
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KINDS = ("http", "https", "all")
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_NAME = re.compile(r"\*|(\w+://)?[*.]?[\w.-]+(:\d+)?", re.ASCII)  # a name in `no_proxy`
ipv6_networks: dict[str, None] = {}  # IPv6 networks from `no_proxy`, which clients cannot read
_GRPC = "no_grpc_proxy"  # if it is set, gRPC ignores `no_proxy`


def keep_loopback_direct(address: str = "") -> None:
    """Make loopback reachable without a proxy, in this process and in its children.

    `address`: one more host or HOST:PORT to reach without a proxy, if it is on loopback (such as
    127.0.0.2) or in a network that `no_proxy` lists. This function removes the entries of
    `no_proxy` that httpx cannot read, because httpx would raise an error for every new client, even
    without a proxy.
    """
    host = host_of(address)
    wanted = [*LOOPBACK, host] if is_loopback(host) else LOOPBACK
    said = [each for name in _EXCEPTIONS for each in _listed(name)]
    everybody = ",".join(dict.fromkeys([*_readable(said, host), *wanted]))
    os.environ.update(dict.fromkeys(_EXCEPTIONS, everybody))
    for name in (f"{kind}_proxy" for kind in _KINDS):
        for each in (name, name.upper()):
            if each in os.environ:
                os.environ[each] = os.environ[each].strip()
    if _GRPC in os.environ:
        os.environ[_GRPC] = ",".join(dict.fromkeys([*_listed(_GRPC), *wanted]))


def _readable(said: list[str], host: str) -> Iterator[str]:
    """Yield the entries of `no_proxy` that httpx can read, and `host` if an entry contains it.

    httpx raises for IPv6 networks (::1/128, fd00::/8), for brackets and for invalid names.
    """
    for each in [*said, *ipv6_networks]:
        try:
            network = ipaddress.ip_network(each.strip("[]"), strict=False)
        except ValueError:
            if _NAME.fullmatch(each):
                yield each
            continue
        if network.version == 6:
            ipv6_networks[str(network)] = None
        if network.num_addresses == 1:
            yield str(network.network_address)
        elif network.version == 4:  # httpx reads it as a name, other clients as a network
            yield each
        with suppress(ValueError):
            if ipaddress.ip_address(host) in network:
                yield host


def expect_usable_proxies(address: str = "") -> None:
    """Raise `UsageError` with a one-line message for a proxy variable that clients cannot use.

    It checks the proxies of all schemes, because clients parse all of them, even for a connection
    without a proxy. `address`: HOST:PORT of the only machine to which the caller connects, in the
    context `unproxied`. If this address is on loopback, any proxies are accepted.
    """
    if is_loopback(host_of(address)):
        return
    for kind, proxy in _proxies().items():
        scheme, said = _parts(proxy)
        if scheme in ("socks5", "socks5h") and find_spec("socksio") is None:
            raise UsageError(
                f"{kind}_proxy is a SOCKS proxy: `pip install socksio`, or unset {kind}_proxy"
            )
        if scheme not in ("http", "https", "socks5", "socks5h") or not said:
            raise UsageError(
                f"{kind}_proxy={_shown(proxy)}: it must be http://HOST:PORT, or socks5"
            )


@contextmanager
def unproxied(address: str) -> Iterator[None]:
    """If the address is on loopback, the proxy variables are unset within this context."""
    if not is_loopback(host_of(address)):
        yield
        return
    names = [f"{kind}_proxy" for kind in _KINDS]
    hidden = {name: os.environ.pop(name, None) for each in names for name in (each, each.upper())}
    try:
        yield
    finally:
        os.environ.update({name: said for name, said in hidden.items() if said is not None})


def _proxies() -> dict[str, str]:
    """Return the non-blank proxies that the environment sets, by the URL scheme that uses them."""
    found = getproxies()
    return {kind: found[kind].strip() for kind in _KINDS if found.get(kind, "").strip()}


def _parts(proxy: str) -> tuple[str, str]:
    """Return a proxy's scheme, and its HOST:PORT or HOST; "" for parts that cannot be read."""
    import httpx  # not at the top: only callers that connect need it

    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0 or re.search(r"\s", url):
            return parts.scheme, ""
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return url.partition("://")[0].lower(), ""
    return parts.scheme, parts.netloc.rpartition("@")[2]


def _shown(proxy: str) -> str:
    """Return a proxy's URL without its user and password."""
    scheme, _, rest = proxy.rpartition("://")
    return repr((f"{scheme}://" if scheme else "") + rest.rpartition("@")[2])


def proxy_of(address: str, secure: bool) -> str:
    """Return the proxy (HOST:PORT) of connections to an address (HOST:PORT); "" without a proxy."""
    host = host_of(address)
    if is_loopback(host) or proxy_bypass(host):
        return ""
    found = _proxies()
    return _parts(found.get("https" if secure else "http") or found.get("all", ""))[1]


def by_proxy(address: str, secure: bool) -> str:
    """Return " by the proxy HOST:PORT" for an address behind a proxy, else ""."""
    found = proxy_of(address, secure)
    return f" by the proxy {found}" if found else ""


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
