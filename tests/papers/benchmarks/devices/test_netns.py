"""The benchmark with slow links makes network namespaces, counts their bytes and removes them."""

import subprocess
import sys

import pytest

from edgewire.machine.errors import UsageError
from papers.benchmarks.devices.netns import SERVER, lines

SENDS = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for _ in range(10):
        s.sendto(bytes(1000), (sys.argv[1], 9))
"""


def test_a_link_counts_its_bytes_and_is_removed():
    try:
        with lines(2) as made:
            made.shape("10mbit", None)
            words = made.within(made.nodes[0], [sys.executable, "-c", SENDS, SERVER])
            before = made.counters()
            subprocess.run(words, check=True)
            after = made.counters()
    except UsageError as error:
        pytest.skip(f"no network namespaces here: {error}")
    sent = after["up"] - before["up"]
    assert 10_420 <= sent < 13_000  # Ethernet, IP and UDP headers take 42 bytes for each packet
    there = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not {made.server, *made.nodes} & set(there.stdout.split())
