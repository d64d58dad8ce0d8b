"""Proxies: none for this machine itself; for others those that the environment names.

`http_proxy`, `https_proxy`, `all_proxy` and `no_proxy` hold for every connection to another
machine, in small letters or in capitals. Flower's clients, httpx, gRPC and Ray all read these, and
so would send what is for 127.0.0.1 to the proxy, which has another 127.0.0.1. So before anything is
connected or started `no_proxy` names loopback, in this process and in all that it starts.
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

from .errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KINDS = ("http", "https", "all")
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_NAME = re.compile(r"\*|(\w+://)?[*.]?[\w.-]+(:\d+)?", re.ASCII)  # in `no_proxy`
ipv6_networks: dict[str, None] = {}  # that were in `no_proxy`, where clients cannot read them
_GRPC = "no_grpc_proxy"  # where it is set gRPC does not look at the others


def keep_loopback_direct(address: str = "") -> None:
    """See to it that loopback is reached by no proxy, here and in processes that are started.

    `address`: HOST:PORT, or a host, that may be a name of loopback as well (127.0.0.2, say), or be
    in a network that `no_proxy` names. What httpx cannot read is left out of that: it would raise
    for every client that is made, also where no proxy is set.
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
    """Yield what httpx can read of `no_proxy`, and the host where one of its networks holds that.

    httpx raises for IPv6 networks (::1/128, fd00::/8), for brackets and for what is no name.
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
        elif network.version == 4:  # httpx takes it for a name, others for the network
            yield each
        with suppress(ValueError):
            if ipaddress.ip_address(host) in network:
                yield host


def expect_usable_proxies(address: str = "") -> None:
    """Raise `UsageError`, one line, for a proxy in the environment that no client here can use.

    Whatever it is for: clients read all proxies, also where they go by none of them. `address`:
    HOST:PORT of the only machine that is asked, `unproxied`; on loopback any proxies will do.
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
    """Within, clients that are made for an address on loopback do not read the proxies."""
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
    """Return the environment's proxies, by what they are for; none that is blank."""
    found = getproxies()
    return {kind: found[kind].strip() for kind in _KINDS if found.get(kind, "").strip()}


def _parts(proxy: str) -> tuple[str, str]:
    """Return a proxy's scheme and HOST:PORT, or HOST: "" of what cannot be read."""
    import httpx  # not above: it is for those who connect, and have imported it

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
    """Return a proxy as it was given, without its user and password."""
    scheme, _, rest = proxy.rpartition("://")
    return repr((f"{scheme}://" if scheme else "") + rest.rpartition("@")[2])


def proxy_of(address: str, secure: bool) -> str:
    """Return the proxy by which an address (HOST:PORT) is reached: HOST:PORT; "" for none."""
    host = host_of(address)
    if is_loopback(host) or proxy_bypass(host):
        return ""
    found = _proxies()
    return _parts(found.get("https" if secure else "http") or found.get("all", ""))[1]


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
