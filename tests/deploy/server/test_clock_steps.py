"""The clocks of the server and of a node step at each call: each message gets exactly one reply."""

import logging
import sys
import time
from datetime import UTC, datetime
from functools import cache
from os import urandom
from types import SimpleNamespace

import flwr.app.message.message
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
)
from flwr.supercore import date
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from edgewire.compression.flower.records import reply_to
from edgewire.deploy import signed_header
from edgewire.deploy.device import client
from edgewire.deploy.device.app_runner import answered, message_of
from edgewire.deploy.device.throttled_log import ThrottledLog
from edgewire.deploy.device.transport import ids_of
from edgewire.deploy.server import message_store, steady_clock
from edgewire.deploy.server.incomplete_replies import IncompleteReplies
from edgewire.deploy.server.node_processes import NodeProcesses
from edgewire.protocol.bundle import parts_of
from tests.deploy.served import FakeNode, Server

APP_RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
YEAR, TTL = 365 * 86400, 3600.0  # seconds
STEPS = st.tuples(*[st.sampled_from([0, 0, 600, -600, YEAR, -YEAR])] * 2)
CONTENT = RecordDict({"question": ConfigRecord({"number": 1})})


class Clocks:
    """True time, and the clock of the machine that computes now, which is stepped."""

    def __init__(self):
        self.true, self.steps, self.where = time.monotonic(), [0.0, 0.0], 0
        self.began = time.time() - self.true

    def now(self, tz=UTC):
        return datetime.fromtimestamp(self.began + self.true + self.steps[self.where], tz)


CLOCKS = Clocks()
SERVER, NODE = range(2)  # the places in `steps`


@pytest.fixture
def steady(monkeypatch):
    """Install the server's clock in this process until the test ends."""
    for name, module in list(sys.modules.items()):
        if name.startswith("flwr.") and vars(module).get("now") is date.now:
            monkeypatch.setattr(module, "now", date.now)  # restores it
    steady_clock.install()


def test_only_signatures_are_checked_with_the_machines_clock(steady):
    users = {name for name, each in sys.modules.items() if vars(each).get("now") is date.now}
    assert {name for name in users if name.startswith("flwr.")} <= {
        "flwr.supercore.date",
        "flwr.supercore.auth.superexec",
        "flwr.superlink.routers.fleet.node_auth",
        "flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor",
    }
    assert "flwr.superlink.routers.fleet.node_auth" in users
    assert abs(steady_clock.now().timestamp() - time.time()) < 60


@cache
def superlink_state():
    return create_app().state.linkstate_factory.state()


class Exchange(RuleBasedStateMachine):
    """A ServerApp, a SuperLink and a node, whose messages and replies are kept until they move."""

    def __init__(self):
        super().__init__()
        CLOCKS.steps = [0.0, 0.0]
        self.state = superlink_state()
        number = self.state.create_node("", "", urandom(8), 60.0)
        self.state.activate_node(number, 60.0)
        self.node = Node(node_id=number)
        digest = self.state.store_fab(Fab("", b"app", {}))
        run = self.state.create_run(
            "a/b", "1", digest, {}, NOOP_FEDERATION_ID, None, "<id:none>", TaskType.SERVER_APP
        )
        self.task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        self.state.claim_task(self.task)
        self.state.activate_task(self.task)
        self.identity = SimpleNamespace(run_id=run, task_id=self.task)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 1, self.task
        self.handed, self.arriving = NodeProcesses(), IncompleteReplies(lambda: CLOCKS.true)
        self.asked = {}  # id of a message -> the error code that its reply must have
        self.replies = {}  # id of a message -> its replies that the ServerApp has received
        self.held, self.sent = None, None  # the node's message, and its last push

    def _step(self, steps, where):
        """Step both clocks; then this machine computes. Time passes, and the node is online."""
        CLOCKS.true += 1.0
        CLOCKS.steps = [before + step for before, step in zip(CLOCKS.steps, steps, strict=True)]
        CLOCKS.where = SERVER
        self.state.acknowledge_task_heartbeat(self.task)
        message_store.mark_online(self.node.node_id, self.state)
        CLOCKS.where = where

    @rule(steps=STEPS, between=STEPS)
    def ask(self, steps, between):
        self._step(steps, SERVER)
        message = Message(CONTENT, self.node.node_id, "query", ttl=TTL)
        message.metadata.__dict__.update(_run_id=self.identity.run_id, _src_node_id=1)
        request, objects = _pushed(message, PushAppMessagesRequest)
        self._step(between, SERVER)
        response = message_store.from_server(request, objects, self.state, self.identity)
        (name,) = response.message_ids
        assert name == message.object_id
        self.asked[name], self.replies[name] = None, []

    @rule(steps=STEPS)
    def pull(self, steps):
        self._step(steps, SERVER)
        request = PullMessagesRequest(node=self.node)
        load = message_store.for_node(request, self.handed, self.state)
        if load is not None:
            CLOCKS.where = NODE
            self.held = message_of(load.response, load.objects)

    @rule()
    def lose(self):
        """The node is killed before it has its message on disk."""
        self.held = None

    @rule(steps=STEPS, by=st.sampled_from(["flower", "edgewire", "error"]))
    def push(self, steps, by):
        """Push a reply as a node of the project does; its ClientApp makes the reply."""
        if self.held is None:
            return
        self._step(steps, NODE)

        def app(message, context):
            made = {"flower": _by_flower, "edgewire": reply_to, "error": _raised}[by]
            return made(message, CONTENT)

        context = SimpleNamespace(run_id=self.identity.run_id, node_id=self.node.node_id)
        bundle = answered(self.held, context, lambda: app, ThrottledLog())
        TaskIdentity.node_id = 1
        (_, head), *parts, _ = parts_of(bundle, len(bundle))
        code = APP_RAISED if by == "error" else 0
        self._arrives(PushMessagesRequest.FromString(head), dict(parts), code)

    @rule(steps=STEPS, valid=st.booleans())
    def push_by_stock_node(self, steps, valid):
        """Push a reply as Flower's SuperNode does, with the times of the node's clock."""
        if self.held is None:
            return
        self._step(steps, NODE)
        reply = _by_flower(self.held, CONTENT)
        if not valid:  # Flower stores no reply to another node
            reply.metadata.__dict__["_dst_node_id"] = 7
        request, objects = _pushed(reply, PushMessagesRequest, node=self.node)
        self._arrives(request, objects, 0 if valid else APP_RAISED)

    @rule(steps=STEPS)
    def push_again(self, steps):
        """Repeat the last push, whose answer was lost."""
        if self.sent is not None:
            self._step(steps, SERVER)
            self._arrives(*self.sent)

    @rule(steps=STEPS)
    def receive(self, steps):
        self._step(steps, SERVER)
        waiting = [name for name, found in self.replies.items() if not found]
        request = PullAppMessagesRequest(message_ids=waiting)
        found = waiting and message_store.for_server(
            request, self.arriving, lambda node: False, self.state, self.identity
        )
        (_, head), *objects = found or [("response", b"")]
        response = PullAppMessagesResponse.FromString(head)
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            self.replies[message.metadata.reply_to_message_id].append(message)
            assert {*ids_of(tree)} <= dict(objects).keys()

    def teardown(self):
        for _ in self.asked:
            self.pull((0, 0))
            self.push((0, 0), "edgewire")
        assert not self.handed.again(self.node.node_id, self.state)
        self.receive((0, 0))
        for name, code in self.asked.items():
            (found,) = self.replies[name]
            assert found.error.code == code, found

    def replied(self, name):
        return self.replies[name] or name in self.state.message_ins_id_to_message_res_id

    def _arrives(self, request, objects, code):
        CLOCKS.where = SERVER
        self.sent = PushMessagesRequest.FromString(request.SerializeToString()), objects, code
        asked = request.messages_list[0].metadata.reply_to_message_id
        if self.asked[asked] is None:
            self.asked[asked] = code
        message_store.from_node(request, objects, None, self.state)
        assert self.replied(asked)


def _pushed(message, kind, **given):
    """Return Flower's request to push a message, and the message's objects."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        said = message_to_proto(remove_content_from_message(message))
        tree = get_object_tree(message)
    return kind(messages_list=[said], message_object_trees=[tree], **given), objects


def _by_flower(message, content):
    reply = Message(content, reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


def _raised(message, content):
    raise ValueError("the app fails")


def test_each_message_gets_one_reply_when_clocks_step(steady, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, "flwr")
    monkeypatch.setattr(steady_clock, "time", SimpleNamespace(monotonic=lambda: CLOCKS.true))
    monkeypatch.setattr(date, "datetime", SimpleNamespace(datetime=CLOCKS, UTC=UTC))
    monkeypatch.setattr(time, "time", lambda: CLOCKS.now().timestamp())
    monkeypatch.setattr(flwr.app.message.message, "now", date.now)  # of nodes and ServerApps
    run_state_machine_as_test(
        Exchange, settings=settings(max_examples=60, stateful_step_count=15, deadline=None)
    )


@given(st.lists(st.floats(0, 200), max_size=20))
def test_the_servers_clock_stands_still_while_the_server_is_stopped(pauses):
    """Each look at the clock comes after one of the pauses; a longer one than a look is a stop."""
    now = 7.0
    steady = steady_clock.SteadyClock(lambda: now)
    for pause in pauses:
        before = steady.seconds()
        now += pause
        assert steady.seconds() - before == pytest.approx(min(pause, steady_clock.STOPPED))


class OffClock(datetime):
    """The clock of a node, which is off by some seconds."""

    off = 0.0

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time() + cls.off, tz)


@pytest.fixture(scope="module")
def node():
    """Yield a node with its own clock, and whose pulls wait for nothing."""
    with Server() as server, pytest.MonkeyPatch.context() as patch:
        found = FakeNode(server.address)
        patch.setattr(client, "datetime", SimpleNamespace(**vars(client.datetime)))
        patch.setattr(client.datetime, "datetime", OffClock)
        patch.setattr(signed_header, "datetime", OffClock)
        patch.setattr(client, "WAIT", 0)
        yield found
        OffClock.off = 0.0
        found.leave()


@settings(max_examples=10)
@given(steps=st.lists(st.sampled_from([3, -290, 400, -400, YEAR, -YEAR]), min_size=1, max_size=5))
def test_a_node_with_a_wrong_clock_signs_with_the_servers_time(node, steps):
    """After a step of its clock a node is refused at most once."""
    beat = SendNodeHeartbeatRequest(node=node.node, heartbeat_interval=60.0)
    calls = [
        lambda: node.fleet.call(beat, SendNodeHeartbeatResponse),
        lambda: node.fleet.pull(PullMessagesRequest(node=node.node)),
    ]
    for OffClock.off in steps:
        refused = list[int]()
        for call in calls * 2:
            try:
                call()
            except client.ServerRefusal as error:
                refused.append(error.status)
        assert refused in ([], [401])
