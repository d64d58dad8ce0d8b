"""Tests what a node sends to a server when calls fail."""

import hashlib
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from edgewire.deploy import fleet
from edgewire.deploy.device import client, node_loop
from edgewire.deploy.device.apps import OtherApp
from edgewire.deploy.device.backoff import WORTH_WAITING, Wait
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.deaths import MOST
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.device.node_loop import Device
from edgewire.deploy.device.transport import Transport
from edgewire.machine.errors import Ended
from edgewire.protocol.choose_grid import bundled
from edgewire.protocol.flower_releases import installed
from tests.deploy.damage import DAMAGE
from tests.deploy.processes import eventually
from tests.deploy.test_killed import content, expected
from tests.local_runs import raising


class World:
    """A run at a server, and a node whose steps a test calls. `faults`: of the node's calls."""

    beats = 20.0  # seconds between two heartbeats

    def __init__(self, server, fab, folder, faults, apps=()):
        self.server, self.folder, self.apps = server, folder, apps
        self.calls, self.faults = faults.calls, faults.next
        self.pauses, self.node = [], 0
        self.begin_run(fab)
        self.begin()

    def begin_run(self, fab):
        self.grid = bundled(self.server.begin_run(fab))
        self.identity = TaskIdentity.task_id, TaskIdentity.run_id
        self.names, self.replies = [], {}

    def begin(self):
        """Start the node, or restart it."""
        self.node_folder = NodeFolder(self.folder)
        self.fleet = FleetClient(self.server.address, self.node_folder.key(), insecure=True)
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
        TaskIdentity.task_id, TaskIdentity.run_id = self.identity  # the node sets its own
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.node = self.member.node_id or self.node  # 0 until a restarted node is online
        asked = Message(content(len(self.names)), self.node, f"train.{kind}")
        self.names += self.grid.push_messages([asked])

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
            if not now and self.reply_to(self.names[-1]) is not None:
                return failed
            failed += now
        raise AssertionError(failed)

    def reply_to(self, name):
        """Return the reply to a message, None if there is none yet."""
        if name not in self.replies:
            found = self.grid.pull_messages([name])
            self.replies |= {each.metadata.reply_to_message_id: each for each in found}
        return self.replies.get(name)

    def said(self):
        return [self.reply_to(name).content["metrics"] for name in self.names]

    def is_as_expected(self):
        said = [(m["number"], m["total"]) for m in self.said()]
        assert said == list(expected(len(said)))
        return True


@pytest.fixture
def world(servers, fab, tmp_path, monkeypatch, faults):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(client, "WAIT", 0)  # a pull without a message ends at once
    made = []

    def make(bundled=False, apps=()):
        made.append(World(servers[bundled], fab, tmp_path / "node", faults, apps))
        return made[-1]

    yield make
    for each in made:
        each.member.leave()
        each.fleet.close()


@pytest.mark.parametrize("bundled", [False, True])
def test_a_node_replies_to_message_after_message(bundled, world, caplog):
    w = world(bundled=bundled)
    w.steps()
    w.exchange(4)
    assert w.is_as_expected()
    assert len({m["process"] for m in w.said()}) == 1
    assert w.calls.count("get-fab") == w.calls.count("get-run") == 1
    assert {"pull-object", "push-object"}.isdisjoint(w.calls) == bundled
    assert w.calls.count("edgewire/compact/push") == (4 if bundled else 0)
    assert caplog.text.count("no bundled calls") == (not bundled)
    store = w.server.state.object_store
    assert not any(name in store for name in w.names)  # the node confirmed each message


@pytest.mark.parametrize("bundled", [False, True])
def test_an_error_of_the_app_is_reported(bundled, world, caplog):
    caplog.set_level("INFO", "edgewire")
    w = world(bundled=bundled)
    w.steps()
    w.ask("fail")
    w.ask("count")
    w.steps(2)
    error, reply = (w.reply_to(name) for name in w.names)
    assert (error.error.code, error.error.reason) == (
        2, "ZeroDivisionError: on purpose"
    )  # fmt: skip
    assert reply.content["metrics"]["number"] == 1
    assert "messages are answered again; before that there failed 1" in caplog.messages


def test_an_app_that_ends_the_process_is_answered(world):
    w = world(bundled=True)
    w.steps()
    w.ask("exit")
    w.ask()
    w.steps(2)
    assert w.reply_to(w.names[0]).error.reason == "SystemExit: on purpose"
    assert w.reply_to(w.names[1]).content["metrics"]["number"] == 1


def test_the_operator_sees_the_state_of_a_node(world, capsys):
    w = world(bundled=True)
    w.steps()
    for kind in ("count", "fail", "fail"):
        w.ask(kind)
        w.steps(2)
    words = ["--insecure", "--superlink", w.server.address]
    capsys.readouterr()  # the log
    assert fleet.main([*words, "--json"]) == 0
    found = {each["node"]: each for each in json.loads(capsys.readouterr().out)}
    mine = found[w.member.node_id]
    assert (mine["status"], mine["failures"], mine["streak"]) == ("online", 2, 2)
    assert (mine["error"], mine["error_text"]) == ("ZeroDivisionError", "")
    assert abs(mine["clock_offset"]) < 60 > time.time() - mine["last_seen"] > -1
    assert mine["flower"] == installed()
    assert mine["uplink_bytes"] > 1000 < mine["downlink_bytes"]
    assert fleet.main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found)
    (line,) = (each for each in lines if each.split()[:2] == [str(w.member.node_id), "online"])
    assert line.index("ZeroDivisionError") == head.index("error")


def test_a_superlink_of_flower_has_no_states(world, capsys):
    w = world()
    capsys.readouterr()  # the log
    assert fleet.main(["--insecure", "--superlink", w.server.address]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert f"error: {w.server.address} is no `python -m edgewire.deploy.server`" in error


@pytest.mark.parametrize("how", [Ended, OtherApp])
def test_a_node_that_is_asked_to_end_has_not_died(how, world, monkeypatch):
    w = world()
    w.steps()
    w.ask()
    for _ in range(2 * MOST):
        with monkeypatch.context() as patch:
            patch.setattr(node_loop, "answered", raising(how(0)))
            with pytest.raises(how):
                w.device.serve()
        w.die()
        w.begin()
    w.until_replied()
    assert w.is_as_expected()


@pytest.mark.parametrize("bundled", [False, True])
def test_a_reply_with_secrets_is_sent_and_never_stored(bundled, world, caplog):
    """A node that ends before it has sent the reply counts as one that failed."""
    secrets = [hashlib.sha256(content(i)["arrays"]["x"].data).digest() for i in range(3)]
    w = world(bundled=bundled)
    w.steps()
    w.ask("hide")
    w.steps()
    assert w.reply_to(w.names[-1]).content["told"]["secret"] == secrets[0]
    w.ask("hide")
    for call in ("push-messages", "edgewire/compact/push"):
        w.faults[call] += ["lost", 503]
    assert len(w.steps(2)) == 2
    w.until_replied()  # the same process has the reply still
    assert w.reply_to(w.names[-1]).content["told"]["secret"] == secrets[1]
    w.ask("hide")
    for call in ("push-messages", "edgewire/compact/push"):
        w.faults[call][:] = ["lost"]
    assert len(w.steps()) == 1
    files = [each.read_bytes() for each in w.folder.rglob("*") if each.is_file()]
    assert b"deaths" in b"".join(files)
    assert not any(secret in each for each in files for secret in secrets)
    w.die()
    w.begin()
    for call in ("push-messages", "edgewire/compact/push"):
        w.faults[call].clear()
    w.until_replied()
    error = w.reply_to(w.names[-1]).error
    assert error.reason == "the node ended before it sent a reply that is not stored"
    w.exchange()  # a later reply is stored as before
    assert w.reply_to(w.names[-1]).content["metrics"]["number"] == 1


@pytest.mark.parametrize("point", ["objects", "_fetch", "push"])
def test_a_message_is_given_up_with_either_kind_of_calls(point, world, monkeypatch):
    """Also a reply that ends the process each time it is sent, and a message of another process."""
    w = world(bundled=point == "push")
    w.steps()
    w.exchange()
    w.ask()
    owner = Device if point == "_fetch" else Transport
    for _ in range(MOST):
        with monkeypatch.context() as patch:
            patch.setattr(owner, point, raising(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                w.steps(2)
        w.die()
        w.begin()
    w.faults["push-messages"] += ["unanswered"]
    w.faults["edgewire/compact/push"] += ["unanswered"]
    w.steps(3)
    assert w.reply_to(w.names[-1]).error.code == ErrorCode.CLIENT_APP_CRASHED
    w.die()
    w.begin()
    assert not w.steps(2)  # the error is sent again, which does no harm
    w.exchange()
    assert w.reply_to(w.names[-1]).content["metrics"]["number"] == 2 + (point == "push")


CALLS = {
    False: ["register-node", "activate-node", "pull-messages", "get-run", "get-fab", "pull-object",
            "push-messages", "push-object", "confirm-message-received"],
    True: ["edgewire/compact/pull", "edgewire/compact/push"],
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", ["lost", 503])
@pytest.mark.parametrize("bundled", [False, True])
def test_any_call_may_fail(bundled, fault, world):
    w = world(bundled=bundled)
    for call in CALLS[bundled]:
        w.faults[call] += [fault]
    w.steps(len(CALLS[bundled]) + 1)
    for _ in range(3):
        w.ask()
        for call in CALLS[bundled][2 - 2 * bundled :]:
            w.faults[call] += [fault]
        assert w.steps(len(CALLS[bundled]) + 2)
    assert w.is_as_expected()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_the_server_tells_is_asked_for_until_it_has_come(lost, world, monkeypatch):
    """The answer about the server's calls gets lost, or the one about the node, or neither."""
    w, get, asked = world(bundled=True), FleetClient.get, []

    def failing(self, path):
        asked.append(path)
        if len(asked) == lost:
            raise httpx.ReadError("lost")
        return get(self, path)

    monkeypatch.setattr(FleetClient, "get", failing)
    assert len(w.steps(3)) == (lost > 0)
    w.exchange(2)
    assert w.is_as_expected()
    assert asked[-2:] == ["edgewire", "edgewire/status"]
    assert "pull-messages" not in w.calls  # plain calls take longer


@pytest.mark.parametrize("bundled", [False, True])
def test_a_push_without_an_answer_is_repeated_unchanged(bundled, world):
    w = world(bundled=bundled)
    w.steps()
    failed = []
    for call in (
        "push-messages",
        "push-object",
        "confirm-message-received",
        "edgewire/compact/push",
    ):
        w.faults[call] += ["unanswered", "unanswered"]
        w.ask()
        failed += w.until_replied()
    assert w.is_as_expected()
    assert failed


def test_after_two_interrupted_pushes_every_object_arrives(world):
    """The server has handed out the reply, so it asks for no objects when the reply comes again."""
    w = world()
    w.steps()
    w.ask()
    w.faults["push-object"] = ["lost"] * 100  # all calls that are sent at once
    assert w.steps()
    w.faults["push-object"] = ["unanswered"]
    waits = threading.Thread(target=w.reply_to, args=w.names, daemon=True)
    waits.start()
    time.sleep(0.1)
    assert len(w.steps(2)) == 1
    waits.join(60)
    assert w.is_as_expected()


def test_a_redelivered_message_gets_the_same_reply(world, monkeypatch):
    w = world()
    w.steps()
    real, pulled = Transport.pull, []
    monkeypatch.setattr(Transport, "pull", lambda *given: pulled.append(real(*given)) or pulled[-1])
    w.exchange(3)
    with monkeypatch.context() as patch:
        for old in (pulled[2], pulled[0]):  # the last message, and an earlier one
            patch.setattr(Transport, "pull", lambda *_, again=old: again)
            w.steps()
    w.exchange()
    assert w.is_as_expected()
    assert w.calls.count("push-messages") == 5


def test_a_restarted_node_has_the_same_id(world, caplog):
    w = world()
    w.steps()
    w.exchange()
    w.die()
    w.begin()
    caplog.clear()
    w.ask()
    assert not w.steps(2)  # its earlier process still counts as online
    assert w.calls.count("activate-node") == 1
    # Otherwise the server would fail the message under way.
    assert "deactivate-node" not in w.calls
    assert w.is_as_expected()
    assert w.calls.count("register-node") == 1
    assert w.calls.count("get-fab") == 1


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
    assert "push-messages" not in w.calls
    monkeypatch.setattr(os, "fsync", real)
    w.steps()
    w.exchange()
    assert w.is_as_expected()


def test_a_finished_run_is_put_aside(world):
    w = world()
    w.steps()
    w.ask()
    w.faults["push-messages"] += ["lost"]
    assert w.steps()
    w.server.state.stop_run(w.grid.run.run_id)
    assert not w.steps(2)
    assert "push-object" not in w.calls


def test_a_message_without_its_objects_is_logged(world):
    w = world()
    w.steps()
    w.ask()
    w.faults["get-run"] += [503]
    assert w.steps()
    w.server.state.object_store.clear()
    w.steps()
    assert w.reply_to(w.names[0]).has_error()


def test_an_app_that_is_not_allowed_is_never_fetched(world):
    w = world(apps=("0" * 64,))
    w.steps()
    w.ask()
    assert not w.steps()
    assert "takes other apps alone" in w.reply_to(w.names[0]).error.reason
    assert "get-fab" not in w.calls


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
    assert w.reply_to(w.names[1]).has_error()


def test_a_node_is_in_the_app_while_the_app_runs_and_not_after_an_error(world, monkeypatch):
    w = world()
    w.steps()
    seen, real = [], node_loop.answered

    def answered(*given):
        seen.append(w.member.in_app)
        return real(*given)

    monkeypatch.setattr(node_loop, "answered", answered)
    for kind in ("count", "no_such"):
        w.ask(kind)
        w.steps()
        assert not w.member.in_app
    monkeypatch.setattr(node_loop, "answered", raising(OtherApp()))
    w.ask()
    with pytest.raises(OtherApp):
        w.steps()
    assert not w.member.in_app
    assert seen == [True, True]


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", DAMAGE)
def test_the_next_message_works_whatever_file_is_damaged(kind, world, fab, caplog):
    w = world(bundled=True)
    w.steps()
    w.exchange()
    app = w.folder / "apps" / hashlib.sha256(fab).hexdigest()
    (app / "counting" / "__pycache__").mkdir(exist_ok=True)
    cache_from_source = importlib.util.cache_from_source
    Path(cache_from_source(str(app / "counting" / "client.py"))).write_bytes(b"as it may be")
    files = [file for file in w.folder.rglob("*") if file.is_file() and file.name != "key"]
    assert {"client.py", "node.db", "node.json", app.with_suffix(".fab").name} <= {
        file.name for file in files
    }
    for file in files:
        before = w.calls.count("get-fab")
        w.die()
        size = (
            file.stat().st_size if file.exists() else 0
        )  # a database that is closed has no journal
        if size:
            DAMAGE[kind](file)
        for name in [name for name in sys.modules if name.partition(".")[0] == "counting"]:
            del sys.modules[name]
        w.begin()
        failed = w.steps(2)
        w.exchange()
        reply = w.reply_to(w.names[-1])
        assert reply is not None, (file, failed, caplog.messages[-5:])
        assert not reply.has_error(), (file, reply.error)
        again = size and file.suffix == ".fab"
        assert w.calls.count("get-fab") - before == bool(again), file


def test_another_app_needs_another_process(world, fab):
    w = world()
    w.steps()
    w.exchange()
    w.begin_run(fab + b"\0")  # a zip file may have bytes after its end
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
    eventually(lambda: "send-node-heartbeat" in w.calls)
    w.member.leave()
    assert "heartbeat" not in {each.name for each in set(threading.enumerate()) - before}
    count = w.calls.count("send-node-heartbeat")
    w.die()
    time.sleep(0.05)
    w.begin()
    assert w.calls.count("send-node-heartbeat") == count
    ours = [each.message for each in caplog.records if each.name == "edgewire"]
    assert not any("heartbeat" in line for line in ours)


def test_each_reason_is_logged_once_and_pauses_grow(world, caplog):
    w = world()
    w.faults["activate-node"] += [503] * 6 + ["lost"]

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
