"""Tests what a node sends to a fake server when calls fail."""

import hashlib
import os
import sys
import threading
import time

import pytest

from edgewire.deploy.device.apps import OtherApp
from edgewire.deploy.device.backoff import WORTH_WAITING, Wait
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.device.node_loop import Device
from tests.deploy.fake_superlink import FakeSuperLink
from tests.deploy.processes import eventually
from tests.deploy.test_killed import content, expected


class World:
    """A fake server, and a node whose steps a test calls."""

    beats = 20.0  # seconds between two heartbeats

    def __init__(self, fab, folder, monkeypatch, apps=(), **options):
        monkeypatch.setattr(sys, "path", list(sys.path))
        self.superlink, self.folder, self.apps = FakeSuperLink(fab, **options), folder, apps
        self.pauses, self.names = [], []
        self.begin()

    def begin(self):
        """Start the node, or restart it."""
        self.node_folder = NodeFolder(self.folder)
        self.fleet = FleetClient(self.superlink.address, self.node_folder.key(), insecure=True)
        self.member = Membership(self.fleet, self.node_folder, registers=True, beats=self.beats)
        self.device = Device(
            self.fleet, self.node_folder, self.member, {}, apps=self.apps,
            wait=Wait(self.pauses.append),
        )  # fmt: skip

    def die(self):
        """End the node without a message to the server."""
        self.member.stop()
        self.fleet.close()
        self.node_folder.close()

    def steps(self, count=1):
        """Run the node's loop `count` times; return the errors."""
        failed = []
        for _ in range(count):
            try:
                self.device.step()
            except WORTH_WAITING as error:
                failed.append(error)
        return failed

    def ask(self, kind="count"):
        self.names.append(self.superlink.ask(content(len(self.names)), f"train.{kind}"))

    def exchange(self, count=1):
        """Ask questions, one after another; run the node's loop once after each."""
        for _ in range(count):
            self.ask()
            self.steps()

    def until_replied(self):
        """Run the node's loop until its last reply arrives; return the errors before this reply."""
        failed = []
        for _ in range(20):
            now = self.steps()
            if not now and self.superlink.said(self.names[-1]) is not None:
                return failed
            failed += now
        raise AssertionError(failed)

    def said(self):
        return [self.superlink.said(name).content["metrics"] for name in self.names]

    def is_as_expected(self):
        said = [(m["number"], m["total"]) for m in self.said()]
        assert said == list(expected(len(said)))
        return True


@pytest.fixture
def world(fab, tmp_path, monkeypatch):
    made = []

    def make(**options):
        made.append(World(fab, tmp_path / "node", monkeypatch, **options))
        return made[-1]

    yield make
    for each in made:
        each.member.leave()
        each.superlink.stop()
        each.fleet.close()


@pytest.mark.parametrize("bundled", [False, True])
def test_a_node_replies_to_message_after_message(bundled, world, caplog):
    w = world(bundled=bundled)
    w.steps()
    w.exchange(4)
    assert w.is_as_expected()
    assert len({m["process"] for m in w.said()}) == 1
    assert w.superlink.calls.count("get_fab") == w.superlink.calls.count("get_run") == 1
    assert {"pull_object", "push_object"}.isdisjoint(w.superlink.calls) == bundled
    assert w.superlink.calls.count("edgewire_compact_push") == (4 if bundled else 0)
    assert caplog.text.count("no bundled calls") == (not bundled)
    assert not w.superlink.objects  # the node confirmed each message


@pytest.mark.parametrize("bundled", [False, True])
def test_an_error_of_the_app_is_reported(bundled, world, caplog):
    caplog.set_level("INFO", "edgewire")
    w = world(bundled=bundled)
    w.steps()
    w.ask("fail")
    w.ask("count")
    w.steps(2)
    error, reply = (w.superlink.said(name) for name in w.names)
    assert (error.error.code, error.error.reason) == (
        2, "ZeroDivisionError: on purpose"
    )  # fmt: skip
    assert reply.content["metrics"]["number"] == 1
    assert caplog.messages[-1] == "messages are answered again; before that there failed 1"


CALLS = {
    False: ["register_node", "activate_node", "pull_messages", "get_run", "get_fab", "pull_object",
            "push_messages", "push_object", "confirm_message_received"],
    True: ["edgewire_compact_pull", "edgewire_compact_push"],
}  # fmt: skip


@pytest.mark.parametrize("fault", ["lost", 503])
@pytest.mark.parametrize("bundled", [False, True])
def test_any_call_may_fail(bundled, fault, world):
    w = world(bundled=bundled)
    for call in CALLS[bundled]:
        w.superlink.faults[call] += [fault]
    w.steps(len(CALLS[bundled]) + 1)
    for _ in range(3):
        w.ask()
        for call in CALLS[bundled][2 - 2 * bundled :]:
            w.superlink.faults[call] += [fault]
        assert w.steps(len(CALLS[bundled]) + 2)
    assert w.is_as_expected()


@pytest.mark.parametrize("bundled", [False, True])
def test_a_push_without_an_answer_is_repeated_unchanged(bundled, world):
    w = world(bundled=bundled)
    w.steps()
    failed = []
    for call in (
        "push_messages",
        "push_object",
        "confirm_message_received",
        "edgewire_compact_push",
    ):
        w.superlink.faults[call] += ["unanswered", "unanswered"]
        w.ask()
        failed += w.until_replied()
    assert w.is_as_expected()
    assert failed


def test_after_two_interrupted_pushes_every_object_arrives(world):
    w = world()
    w.steps()
    w.ask()
    w.superlink.faults["push_object"] = ["lost"] * 100  # all calls that are sent at once
    assert w.steps()
    w.superlink.faults["push_object"] = ["unanswered"]
    assert w.until_replied()
    assert w.is_as_expected()


def test_a_redelivered_message_gets_the_same_reply(world):
    w = world()
    w.steps()
    w.exchange(3)
    for name in (w.names[2], w.names[0]):  # the last message, and an earlier one
        w.superlink.queue.append(w.superlink.delivered[name])
        w.steps()
    w.exchange()
    assert w.is_as_expected()
    assert w.superlink.calls.count("push_messages") == 5


def test_a_restarted_node_has_the_same_id(world, caplog):
    w = world()
    w.steps()
    w.exchange()
    w.die()
    w.begin()
    caplog.clear()
    w.ask()
    assert not w.steps(2)  # its earlier process still counts as online
    assert w.superlink.calls.count("activate_node") == 1
    # Otherwise the server would fail the message under way.
    assert "deactivate_node" not in w.superlink.calls
    assert w.is_as_expected()
    assert len(w.superlink.nodes) == 1
    assert w.superlink.calls.count("get_fab") == 1


def test_a_node_waits_while_its_disk_is_full(world, monkeypatch):
    w = world()
    w.steps()
    w.ask()
    real = os.fsync

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    failed = w.steps(3)
    assert [str(each) for each in failed] == ["[Errno 28] No space left on device"] * 3
    assert not w.superlink.replies
    monkeypatch.setattr(os, "fsync", real)
    w.steps()
    w.exchange()
    assert w.is_as_expected()


def test_a_finished_run_is_put_aside(world):
    w = world()
    w.steps()
    w.ask()
    w.superlink.faults["push_messages"] += ["lost"]
    assert w.steps()
    w.superlink.over = True
    w.steps()
    w.superlink.over = False
    w.names.clear()
    assert not w.steps()
    assert "push_object" not in w.superlink.calls


def test_a_message_without_its_objects_is_logged(world):
    w = world()
    w.steps()
    w.ask()
    w.superlink.objects.clear()
    w.steps()
    assert w.superlink.said(w.names[0]).has_error()


def test_an_app_that_is_not_allowed_is_never_fetched(world):
    w = world(apps=("0" * 64,))
    w.steps()
    w.ask()
    assert not w.steps()
    assert "takes other apps alone" in w.superlink.said(w.names[0]).error.reason
    assert "get_fab" not in w.superlink.calls


def test_a_stored_app_that_is_no_longer_allowed_is_not_run(world, fab):
    w = world(apps=("0" * 64, hashlib.sha256(fab).hexdigest()))
    w.steps()
    w.ask()
    assert not w.steps()
    assert w.is_as_expected()
    w.die()
    w.apps = ("0" * 64,)
    w.begin()
    w.ask()
    assert not w.steps(2)
    assert w.superlink.said(w.names[1]).has_error()


def test_another_app_needs_another_process(world, fab):
    w = world()
    w.steps()
    w.exchange()
    w.superlink.begin_run(78)
    w.superlink.fab += b"\0"  # a zip file may have bytes after its end
    w.superlink.digest = hashlib.sha256(w.superlink.fab).hexdigest()
    w.names.clear()
    w.ask()
    with pytest.raises(OtherApp):
        w.steps()
    w.die()
    w.begin()
    assert not w.steps(2)
    assert w.is_as_expected()


def test_a_node_that_has_left_sends_no_heartbeat_and_logs_nothing(world, caplog, monkeypatch):
    monkeypatch.setattr(World, "beats", 0.01)
    before = set(threading.enumerate())  # other tests' nodes may still have threads
    w = world()
    w.steps()
    eventually(lambda: "send_node_heartbeat" in w.superlink.calls)
    w.member.leave()
    assert "heartbeat" not in {each.name for each in set(threading.enumerate()) - before}
    count = w.superlink.calls.count("send_node_heartbeat")
    w.die()
    time.sleep(0.05)
    w.begin()
    assert w.superlink.calls.count("send_node_heartbeat") == count
    assert "heartbeat" not in caplog.text


def test_each_reason_is_logged_once_and_pauses_grow(world, caplog):
    w = world()
    w.superlink.faults["activate_node"] += [503] * 6 + ["lost"]

    def pause(seconds):
        w.pauses.append(seconds)
        if len(w.pauses) == 7:
            raise SystemExit

    w.device = Device(w.fleet, w.node_folder, w.member, {}, wait=Wait(pause))
    with pytest.raises(SystemExit):
        w.device.serve()
    assert caplog.text.count("waiting: ") == 2
    assert "answers 503" in caplog.text
    assert "is not reached: Server disconnected" in caplog.text
    assert all(0.5 <= b / a <= 2.5 for a, b in zip(w.pauses, w.pauses[1:], strict=False))
    assert w.pauses[-1] > 2 * w.pauses[0]
