"""Loopback is reached without a proxy; other hosts use the proxies of the environment."""

import os
import sys
from urllib.request import proxy_bypass_environment

import httpx
import pytest

from edgewire.engines.superlink_client import Superlink
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.proxies import (
    by_proxy,
    expect_usable_proxies,
    host_of,
    keep_loopback_direct,
)
from tests.proxied import DEAD, KINDS, dead_proxies


@pytest.fixture(autouse=True)
def proxied(monkeypatch):
    dead_proxies(monkeypatch)


def by_httpx(url):
    """Return whether httpx uses a proxy for a URL."""
    # Reading certificates would take longer than the whole test.
    with httpx.Client(verify=False) as client:
        return client._transport_for_url(httpx.URL(url)) is not client._transport  # noqa: SLF001


@pytest.mark.parametrize("said", ["", "a.org, b.org", "127.0.0.1,a.org", "fd00::/8,a.org,::1/128"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_loopback_is_excepted_in_both_spellings(name, said, monkeypatch):
    """httpx would fail on an IPv6 network, also if no proxy is set; `::1/128` is common."""
    monkeypatch.setenv(name, said)
    keep_loopback_direct()
    keep_loopback_direct()
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    listed = os.environ["no_proxy"].split(",")
    assert len(listed) == len(set(listed))
    assert set(listed) == {"localhost", "127.0.0.1", "::1"} | {
        each.strip() for each in said.split(",") if each and "/" not in each
    }
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert not by_httpx(f"https://{host}:8000")
        assert proxy_bypass_environment(host.strip("[]"))
    assert by_httpx("https://my.server.org:8000")
    assert ("a.org" in said) is not by_httpx("https://a.org")


@pytest.mark.parametrize(
    ("said", "address", "other"),
    [("10.0.0.0/8", "10.1.2.3:9", "11.1.2.3:9"), ("", "127.0.0.2:9", "192.0.2.1:9")],
)
def test_an_excepted_network_and_all_of_loopback_are_direct(said, address, other, monkeypatch):
    monkeypatch.setenv("no_proxy", said)
    for each in ("", other, address):
        keep_loopback_direct(each)
    assert by_httpx(f"http://{other}")
    assert not by_httpx(f"http://{address}")
    assert by_proxy(address, False) == ""


@pytest.mark.parametrize(
    ("address", "host"),
    [("a.org:1", "a.org"), ("[::1]:80", "::1"), ("::1", "::1"), ("a.org", "a.org"), ("", "")],
)
def test_the_host_of_an_address(address, host):
    assert host_of(address) == host


def test_which_proxy_is_in_use(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.org:3128/")
    assert by_proxy("my.server.org:8000", True) == " by the proxy proxy.org:3128"
    assert by_proxy("my.server.org:8000", False) == " by the proxy 127.0.0.1:9"
    assert by_proxy("localhost:8000", True) == ""
    monkeypatch.setenv("no_proxy", ".server.org")
    assert by_proxy("my.server.org:8000", True) == ""
    for kind in KINDS:
        monkeypatch.delenv(f"{kind}_proxy")
        monkeypatch.delenv(f"{kind.upper()}_PROXY")
    assert by_proxy("other.org:8000", True) == ""


def test_an_unusable_setting_gives_one_line(monkeypatch):
    expect_usable_proxies()
    monkeypatch.setenv("no_proxy", "[::1]")
    with pytest.raises(UsageError, match="no_proxy a list of names"):
        expect_usable_proxies()
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(UsageError, match="socks5 with `pip install socksio`"):
        expect_usable_proxies()
    for proxy in ("gopher://127.0.0.1:9", "http://me:secret@foo:bar:baz"):
        monkeypatch.setenv("all_proxy", proxy)
        with pytest.raises(UsageError, match="must be http://HOST:PORT, or socks5") as caught:
            Superlink("192.0.2.1:1")
        assert "secret" not in str(caught.value)


def test_an_error_names_the_proxy_in_use():
    with pytest.raises(EngineError) as said:
        Superlink("192.0.2.1:8000")
    words = f"no SuperLink answers at 192.0.2.1:8000 by the proxy {DEAD[7:]}: "
    assert str(said.value).startswith(words)
    with pytest.raises(EngineError, match=r"no SuperLink answers at 127\.0\.0\.1:1: "):
        Superlink("127.0.0.1:1")
