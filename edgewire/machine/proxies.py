"""Which connections go through the environment's proxies (`https_proxy`): none to this machine.

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
from contextlib import suppress
from urllib.request import getproxies, proxy_bypass

from edgewire.machine.errors import UsageError

MOST_PORT = 65535
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EXCEPTIONS = ("no_proxy", "NO_PROXY")


def keep_loopback_direct(address: str = "") -> None:
    """Make loopback reachable without a proxy, in this process and in its children.

    `address`: one more host or HOST:PORT to reach without a proxy, if it is on loopback (such as
    127.0.0.2) or in a network that `no_proxy` lists. IPv6 networks are removed from `no_proxy`,
    because httpx would raise an error for every new client, even without a proxy.
    """
    host = host_of(address)
    given = ",".join(os.environ.get(name, "") for name in _EXCEPTIONS).split(",")
    listed = [each.strip() for each in given if each.strip()]
    wanted = [*(each for each in listed if not ("/" in each and ":" in each)), *LOOPBACK]
    if is_loopback(host) or any(_contains(each, host) for each in listed):
        wanted.append(host)
    os.environ.update(dict.fromkeys(_EXCEPTIONS, ",".join(dict.fromkeys(wanted))))


def _contains(entry: str, host: str) -> bool:
    """Return whether an entry of `no_proxy` is a network or an address that contains a host."""
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return False


def expect_usable_proxies() -> None:
    """Raise `UsageError` with a one-line message if clients cannot read the proxy variables.

    Clients read all of these variables, even for a connection without a proxy.
    """
    import httpx  # not at the top: only callers that connect need it

    try:
        httpx.Client(verify=False).close()
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise UsageError(
            "http_proxy, https_proxy and all_proxy must be http://HOST:PORT, or socks5 with `pip "
            "install socksio`, and no_proxy a list of names and addresses: correct or unset them"
        ) from error


def by_proxy(address: str, secure: bool) -> str:
    """Return " by the proxy HOST:PORT" for an address (HOST:PORT) behind a proxy, else ""."""
    host, found = host_of(address), getproxies()
    proxy = found.get("https" if secure else "http") or found.get("all", "")
    if not proxy or is_loopback(host) or proxy_bypass(host):
        return ""
    place = proxy.rpartition("://")[2].rpartition("@")[2]  # without the user and password
    return f" by the proxy {place.rstrip('/')}"


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, [HOST]:PORT or HOST."""
    host, _, port = address.rpartition(":")
    return (host if host and port.isdecimal() and host[-1] != ":" else address).strip("[]")


def expect_address(address: str, option: str) -> None:
    """Raise `UsageError` with a one-line message unless an address is HOST:PORT or [HOST]:PORT.

    `option`: the option with this address, as it is written before the value.
    """
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+(%\w+)?\]|[^:/\s\[\]]+):(\d{1,5})", address)
    if not found or not 0 < int(found[3]) <= MOST_PORT:
        raise UsageError(f"{option}{address}: give HOST:PORT, as in 127.0.0.1:8000 or [::1]:8000")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback name or address of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
