"""Makes network namespaces for a server and its devices, with a slow link for each device.

This needs root and iproute2's `ip` and `tc` (with the qdisc `tbf`). A bridge in the server's
namespace connects the links. The bytes on a link are read from the counters of its interface.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgewire.machine.errors import UsageError

NET = "10.77.0"  # visible only within these namespaces
SERVER = f"{NET}.1"
BURST, LATENCY = "16kb", "500ms"  # size of the token bucket; longest delay in its queue


class Lines:
    """The namespaces: `server` and `nodes` are their names; SERVER is the server's address."""

    def __init__(self, name: str, count: int) -> None:
        self.server = f"{name}s"
        self.nodes = [f"{name}n{i}" for i in range(count)]

    def within(self, namespace: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` in a namespace."""
        return ["ip", "netns", "exec", namespace, *command]

    def counters(self) -> dict[str, int]:
        """Return the bytes that all devices have sent ("up") and received ("down") so far.

        The interfaces count whole frames, with the headers of Ethernet, IP and TCP.
        """
        said = _run("ip", "-n", self.server, "-s", "-j", "link", "show", "type", "veth")
        lines = [each["stats64"] for each in json.loads(said)]
        return {
            "up": sum(each["rx"]["bytes"] for each in lines),
            "down": sum(each["tx"]["bytes"] for each in lines),
        }

    def shape(self, up: str | None, down: str | None) -> None:
        """Limit the speed of each link in both directions, such as "10mbit"; None: no limit."""
        for i, node in enumerate(self.nodes):
            if up is not None:
                _limit(node, "up", up)
            if down is not None:
                _limit(self.server, f"l{i}", down)


@contextmanager
def lines(count: int) -> Iterator[Lines]:
    """Within this context the namespaces exist. Raises `UsageError` if they cannot be made."""
    if os.geteuid() != 0:
        raise UsageError("network namespaces are made by root alone: run this as root")
    made = Lines(f"ew{os.getpid()}", count)
    try:
        _join(made)
        yield made
    finally:
        for each in (made.server, *made.nodes):
            subprocess.run(["ip", "netns", "del", each], capture_output=True, check=False)


def _join(made: Lines) -> None:
    for each in (made.server, *made.nodes):
        _run("ip", "netns", "add", each)
        _run("ip", "-n", each, "link", "set", "lo", "up")
    server = ("ip", "-n", made.server)
    _run(*server, "link", "add", "name", "bridge", "type", "bridge")
    _run(*server, "addr", "add", f"{SERVER}/24", "dev", "bridge")
    _run(*server, "link", "set", "bridge", "up")
    for i, node in enumerate(made.nodes):
        peer = ("peer", "name", "up", "netns", node)
        _run(*server, "link", "add", f"l{i}", "type", "veth", *peer)
        _run(*server, "link", "set", f"l{i}", "master", "bridge", "up")
        _run("ip", "-n", node, "addr", "add", f"{NET}.{i + 2}/24", "dev", "up")
        _run("ip", "-n", node, "link", "set", "dev", "up", "up")
    for each in (made.server, *made.nodes):  # else IPv6 neighbour discovery would be counted, too
        switch = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        _run(*made.within(each, ["sh", "-c", f"echo 1 > {switch}"]))


def _limit(namespace: str, device: str, rate: str) -> None:
    bucket = ("tbf", "rate", rate, "burst", BURST, "latency", LATENCY)
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"there is no {command[0]}: install iproute2") from error
    if done.returncode:
        raise UsageError(f"{' '.join(command)}: {done.stderr.strip() or 'failed'}")
    return done.stdout
