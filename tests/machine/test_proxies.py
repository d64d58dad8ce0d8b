"""Loopback is reached without a proxy; other hosts use the proxies of the environment."""

import os
import re
import sys
from urllib.request import proxy_bypass_environment

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from edgewire.deploy.node import client_of, parser
from edgewire.engines.superlink_client import Superlink
from edgewire.machine import proxies
from edgewire.machine.errors import UsageError
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


@pytest.mark.parametrize("said", ["", "a.org, b.org", "127.0.0.1,a.org"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_loopback_is_excepted_in_both_spellings(name, said, monkeypatch):
    monkeypatch.setenv(name, said)
    assert by_httpx("http://localhost:8000")
    keep_loopback_direct()
    keep_loopback_direct()
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    listed = os.environ["no_proxy"].split(",")
    assert len(listed) == len(set(listed))
    assert set(listed) == {"localhost", "127.0.0.1", "::1"} | {
        each.strip() for each in said.split(",") if each
    }
    for host in ("localhost", "127.0.0.1", "[::1]"):
        for scheme in ("http", "https"):
            assert not by_httpx(f"{scheme}://{host}:8000")
            assert proxy_bypass_environment(host.strip("[]"))
    assert by_httpx("https://my.server.org:8000")
    assert ("a.org" in said) is not by_httpx("https://a.org")


def test_grpcs_own_exceptions_are_kept(monkeypatch):
    monkeypatch.delenv("no_grpc_proxy")
    keep_loopback_direct()
    assert "no_grpc_proxy" not in os.environ
    monkeypatch.setenv("no_grpc_proxy", "a.org")
    keep_loopback_direct()
    assert dict(os.environ)["no_grpc_proxy"] == "a.org,localhost,127.0.0.1,::1"


def test_another_name_of_loopback_is_excepted_too():
    keep_loopback_direct("127.0.0.2:8000")
    assert not by_httpx("http://127.0.0.2:8000")
    keep_loopback_direct("192.0.2.1:8000")
    assert by_httpx("http://192.0.2.1:8000")


@pytest.mark.parametrize(
    "said",
    ["::1/128", "[::1]", "[::1]/128", "fd00::/8,a.org", "a\tb", "é", "http://a:b", "[", "a.org,*"],
)
def test_exceptions_that_httpx_cannot_read_stop_no_client(said, monkeypatch):
    """httpx fails on these entries of `no_proxy`, also if no proxy is set; `::1/128` is common."""
    monkeypatch.setattr(proxies, "unreadable", {})
    monkeypatch.setenv("no_proxy", said)
    keep_loopback_direct()
    assert not by_httpx("http://[::1]:8000")
    assert by_httpx("http://other.org:8000") is ("*" not in said)
    assert by_httpx("http://a.org:8000") is ("a.org" not in said)


@pytest.mark.parametrize(
    ("said", "address"),
    [("fd00::/8", "[fd00::7]:9"), ("10.0.0.0/8", "10.1.2.3:9"), ("[fd00::7]", "[fd00::7]:9")],
)
def test_an_excepted_network_covers_the_server_in_it(said, address, monkeypatch):
    monkeypatch.setattr(proxies, "unreadable", {})
    monkeypatch.setenv("no_proxy", said)
    keep_loopback_direct()  # before the server's address is known
    keep_loopback_direct("[fe80::1]:9")
    keep_loopback_direct("11.1.2.3:9")
    assert by_httpx("http://[fe80::1]:9")
    assert by_httpx("http://11.1.2.3:9")
    keep_loopback_direct(address)
    assert not by_httpx(f"http://{address}")
    assert by_proxy(address, False) == ""


def test_blanks_around_a_proxy_are_removed(monkeypatch):
    monkeypatch.setenv("http_proxy", " http://127.0.0.1:9\n")
    keep_loopback_direct()
    expect_usable_proxies("other.org:8000")
    assert by_httpx("http://other.org:8000")


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


def test_an_unusable_proxy_gives_one_line(monkeypatch):
    expect_usable_proxies()
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(UsageError, match="all_proxy is a SOCKS proxy: `pip install socksio`"):
        expect_usable_proxies()
    monkeypatch.setenv("all_proxy", "gopher://127.0.0.1:9")
    with pytest.raises(
        UsageError, match=r"all_proxy='gopher://127\.0\.0\.1:9': it must be http://"
    ):
        Superlink("192.0.2.1:1")


MALFORMED = ["http://foo:bar:baz", "foo:bar:baz", "http://[::1", "http://:3128", "http://a:99999"]


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("said", [*MALFORMED, "http://a b:1", "http://me:secret@foo:bar:baz"])
def test_an_unreadable_proxy_is_named_without_its_password(name, said, monkeypatch):
    for spelling in (name.lower(), name.upper()):
        monkeypatch.delenv(spelling)
    monkeypatch.setenv(name, said)
    with pytest.raises(UsageError) as caught:
        Superlink("192.0.2.1:1")
    shown = said.replace("me:secret@", "")
    words = f"{name.lower()}={shown!r}: it must be http://HOST:PORT, or socks5"
    assert str(caught.value) == words
    with pytest.raises(UsageError, match=re.escape(words)):
        client_of(node_words("192.0.2.1:1"), new_key())


@pytest.mark.parametrize("said", [*MALFORMED, "gopher://127.0.0.1:9"])
def test_on_loopback_any_proxy_setting_works(said, monkeypatch):
    for kind in ("http", "https", "all"):
        monkeypatch.setenv(f"{kind}_proxy", said)
    with pytest.raises(UsageError, match=r"no SuperLink answers at 127\.0\.0\.1:1: "):
        Superlink("127.0.0.1:1")
    client_of(node_words("127.0.0.1:1"), new_key()).close()
    assert os.environ["http_proxy"] == said


def test_a_blank_proxy_counts_as_none(monkeypatch):
    for kind in KINDS:
        monkeypatch.setenv(f"{kind}_proxy", "  ")
        monkeypatch.setenv(f"{kind}_proxy".upper(), "  ")
    expect_usable_proxies()
    assert by_proxy("other.org:8000", True) == by_proxy("other.org:8000", False) == ""


def node_words(address):
    return parser().parse_args(["--superlink", address, "--state", "x", "--insecure"])


def new_key():
    return ec.generate_private_key(ec.SECP384R1())


def test_an_error_names_the_proxy_in_use():
    with pytest.raises(UsageError) as said:
        Superlink("192.0.2.1:8000")
    words = f"no SuperLink answers at 192.0.2.1:8000 by the proxy {DEAD[7:]}: "
    assert str(said.value).startswith(words)
    with pytest.raises(UsageError, match=r"no SuperLink answers at 127\.0\.0\.1:1: "):
        Superlink("127.0.0.1:1")
