"""systemd hears of a node only while the node goes on, online or not."""

import threading
import time

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse

from edgewire.deploy.device import heartbeats
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder

ALIVE, READY = "WATCHDOG=1", "READY=1"
STILL, BEATS = 0.2, 0.01  # seconds


class FakeFleet:
    """A client whose server is missing until `there`."""

    counted_until, address, public_key, there = 0.0, "here", b"key", False

    def call(self, request, kind, **options):
        if not self.there:
            raise httpx.ConnectError("refused")
        return kind(node_id=5) if kind is ActivateNodeResponse else kind(success=True)


@pytest.fixture
def fleet():
    return FakeFleet()


@pytest.fixture
def member(tmp_path, monkeypatch, notified, fleet):
    monkeypatch.setattr(heartbeats, "STILL", STILL)
    monkeypatch.setattr(heartbeats, "NOISE", 0.01)  # pytest's own threads work now and then
    made = Membership(fleet, NodeFolder(tmp_path / "node"), registers=False, beats=BEATS)
    yield made
    made.stop()


def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def worker(seconds):
    thread = threading.Thread(target=busy, args=(seconds,))
    thread.start()
    thread.join()


def test_a_node_whose_server_is_missing_is_ready_and_goes_on(member, notified):
    with pytest.raises(httpx.ConnectError):
        member.enter()
    busy(3 * STILL)
    first, *others = notified()
    assert first == READY
    assert set(others) == {ALIVE}


def test_a_node_that_does_nothing_is_alive_no_longer_unless_it_is_in_the_app(
    member, notified, fleet
):
    """Each wait begins with 0.2 s (`STILL`) in which the node still counts as alive."""
    fleet.there = True
    member.enter()

    def waits(seconds):
        notified()
        time.sleep(seconds)
        return len(notified()) * BEATS

    for work in (busy, worker):  # a reply may be sent by other threads
        work(2 * STILL)
        notified()
        work(STILL)
        assert ALIVE in notified()
        assert waits(4 * STILL) <= 1.5 * STILL
    member.in_app = True
    assert waits(4 * STILL) > 2 * STILL
    member.in_app = False
    assert waits(4 * STILL) <= 1.5 * STILL
