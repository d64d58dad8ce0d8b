"""Long polling, and whole messages in one request, for nodes and ServerApps on a real SuperLink."""

import asyncio
import math
import socket
import threading
import time
from contextlib import ExitStack, suppress
from hashlib import sha256

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.control_pb2 import StopRunRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from edgewire.deploy.compact_bundle import compact
from edgewire.deploy.server import incomplete_replies, node_processes
from edgewire.deploy.server.keyed_condition import KeyedCondition
from edgewire.deploy.signed_header import PROCESS
from edgewire.engines.superlink_client import Superlink
from edgewire.protocol.bundled_grid import BundledGrid
from edgewire.protocol.choose_grid import bundled
from edgewire.protocol.run_ended import RunEnded
from tests.deploy.served import FakeNode, Server, later, question


def number(message):
    return message.content["question"]["number"]


def reply(number):
    return RecordDict({"question": ConfigRecord({"number": number})})


@pytest.fixture
def server(tmp_path):
    with Server(output=tmp_path / "runs") as there:
        yield there


@pytest.fixture
def plain_server():
    with Server(bundling=False) as there:
        yield there


def node_and_grid(server):
    """Return a node of a server, and the grid of a run there."""
    return FakeNode(server.address), bundled(server.begin_run())


def asked_both(server):
    """Ask two nodes a question; return an honest node, the other one, the grid, the ids."""
    nodes, grid = [FakeNode(server.address) for _ in range(2)], bundled(server.begin_run())
    return *nodes, grid, grid.push_messages([question(each.node.node_id) for each in nodes])


def test_a_message_and_its_reply_arrive(server):
    node, grid = node_and_grid(server)
    assert isinstance(grid, BundledGrid)
    assert node.message() is None
    (asked,) = grid.push_messages([question(node.node.node_id, 7)])
    message = node.message()
    assert number(message) == 7
    assert message.metadata.message_id == asked
    assert grid.pull_messages([asked]) == []
    assert list(node.reply_to(message, reply(8)).objects_to_push) == []
    (found,) = grid.pull_before([asked], grid.now + 5)
    assert number(found) == 8
    assert found.metadata.reply_to_message_id == asked
    assert found.metadata.src_node_id == node.node.node_id
    assert len(server.state.object_store) == 0  # the server has forgotten both


def test_node_and_server_wait_until_a_message_arrives(server):
    node, grid = node_and_grid(server)
    sent = []
    with later(0.3, lambda: sent.extend(grid.push_messages([question(node.node.node_id)]))):
        begun = time.monotonic()
        message = node.message(wait=20)
        assert 0.25 < time.monotonic() - begun < 2
    with later(0.3, lambda: node.reply_to(message, reply(1))):
        begun = time.monotonic()
        assert len(grid.pull_before(sent, grid.now + 20)) == 1
        assert 0.25 < time.monotonic() - begun < 2


def test_a_pull_waits_no_longer_than_asked(server):
    node, grid = node_and_grid(server)
    begun = time.monotonic()
    assert node.message(wait=1) is None
    (asked,) = grid.push_messages([question(node.node.node_id)])
    assert grid.pull_before([asked], grid.now + 0.2) == []
    assert 1.2 <= time.monotonic() - begun < 3


def test_of_two_pulls_of_a_node_the_newer_one_gets_the_message(server):
    node, grid = node_and_grid(server)
    older = []
    thread = threading.Thread(target=lambda: older.append(node.message(wait=20)))
    thread.start()
    time.sleep(0.2)
    with later(0.3, lambda: grid.push_messages([question(node.node.node_id, 3)])):
        assert number(node.message(wait=20)) == 3
    thread.join()
    assert older == [None]


def test_plain_calls_of_a_node_wake_a_server_that_waits(server):
    """A SuperNode's calls (Flower's own) also wake the waiting pull of a ServerApp."""
    node, grid = node_and_grid(server)
    (asked,) = grid.push_messages([question(node.node.node_id)])
    message = node.message()
    response = node.reply_to(message, reply(4), bare=True)
    names = list(response.objects_to_push)
    assert set(names) == set(node.objects)

    def push():
        for name in names:
            node.push_object(message, response, name)

    with later(0.2, push):
        (found,) = grid.pull_before([asked], grid.now + 10)
    assert number(found) == 4


def test_a_reply_without_its_objects_fails_its_node_alone(server, monkeypatch):
    """A reply without its objects counts as a failure of its node; other replies arrive at once."""
    monkeypatch.setattr(incomplete_replies, "EXPIRES", 0.5)
    honest, other = FakeNode(server.address), FakeNode(server.address)
    grid = bundled(server.begin_run())
    for each in range(2):
        ids = grid.push_messages([question(one.node.node_id, each) for one in (honest, other)])
        other.reply_to(other.message(), reply(7), bare=True)
        honest.reply_to(honest.message(), reply(8))
        begun = time.monotonic()
        (found,) = grid.pull_before(ids, grid.now + 20)
        assert number(found) == 8
        assert found.metadata.reply_to_message_id == ids[0]
        assert time.monotonic() - begun < 0.4
        (lost,) = grid.pull_before(ids[1:], grid.now + 20)
        assert lost.has_error()
        assert lost.metadata.reply_to_message_id == ids[1]
        assert time.monotonic() - begun < 3
    assert len(server.state.object_store) == 0


def tree(name, *below):
    return ObjectTree(object_id=sha256(name.encode()).hexdigest(), children=below)


def chained(length, times):
    """Return trees of which each names the one before, `times` times."""
    above = [tree(str(each), *[tree(str(each - 1))] * times) for each in range(1, length)]
    return [tree("0"), *above]


TREES = {
    "wide": lambda: [tree(str(n)) for n in range(70_000)],
    "40 names": lambda: chained(40, 2),
    "deep": lambda: chained(3000, 1),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("flowers", [False, True])
def test_an_announced_tree_delays_no_other_reply(server, kind, flowers):
    """A tree of 40 names could become 2**40 objects in the store, and 3,000 a deep recursion."""
    honest, other, grid, ids = asked_both(server)
    with suppress(httpx.HTTPStatusError):  # a tree of 70,000 names is refused
        other.reply_to(other.message(), reply(7), bare=True, below=TREES[kind](), flowers=flowers)
    honest.reply_to(honest.message(), reply(8))
    begun = time.monotonic()
    (found,) = grid.pull_before(ids, grid.now + 5)
    assert time.monotonic() - begun < 0.2
    assert number(found) == 8


@pytest.mark.parametrize("lie", ["part missing", "no message", "damaged", "another sender"])
def test_a_reply_that_is_not_named_by_its_hash_is_refused(server, lie):
    honest, other, grid, ids = asked_both(server)
    message, others = honest.message(), other.message()
    false = Message(reply(7), reply_to=message if lie == "another sender" else others)
    false.metadata.__dict__["_src_node_id"] = honest.node.node_id
    root = reply(7) if lie == "no message" else false
    objects = {name: each.deflate() for name, each in get_all_nested_objects(root).items()}
    whole = get_object_tree(root)
    if lie == "part missing":
        whole.ClearField("children")
    elif lie == "damaged":
        content = b"Message  3\0\xff\xff\xff"
        whole = ObjectTree(object_id=sha256(content).hexdigest())
        objects = {whole.object_id: content}
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        other.reply_to(others, reply(7), instead=lambda _: (whole, objects))
    honest.reply_to(message, reply(8))
    (found,) = grid.pull_before(ids, grid.now + 5)
    assert number(found) == 8
    assert found.metadata.src_node_id == honest.node.node_id


@pytest.mark.parametrize(
    "content",
    [reply(7).deflate(), ConfigRecord({"a": 1}).deflate(), b"RecordDict  3\0\xff\xff\xff"],
)
def test_a_reply_whose_content_is_wrong_fails_its_node_alone(server, content):
    """A part is missing, the content is no `RecordDict`, or it is damaged."""
    honest, other, grid, ids = asked_both(server)

    def false(body):
        name = sha256(content).hexdigest()
        root = f"Message {name} {len(body)}\0".encode() + body
        whole = ObjectTree(
            object_id=sha256(root).hexdigest(), children=[ObjectTree(object_id=name)]
        )
        return whole, {name: content, whole.object_id: root}

    other.reply_to(other.message(), reply(7), instead=false)
    honest.reply_to(honest.message(), reply(8))
    replies = grid.pull_before(ids, grid.now + 5)
    found = {each.metadata.reply_to_message_id: each for each in replies}
    assert number(found[ids[0]]) == 8
    assert found[ids[1]].has_error()


@pytest.mark.parametrize(("bundles", "flowers"), [(True, True), (False, False)])
def test_false_children_that_a_node_announced_reach_nobody(server, bundles, flowers):
    """Names of the ServerApp's next message, and of another node's reply, are known beforehand."""
    honest, other = FakeNode(server.address), FakeNode(server.address)
    plain = server.begin_run()
    grid = bundled(plain)
    grid.push_messages([question(other.node.node_id, 1)])
    known = [question(honest.node.node_id, 2).content, reply(8)]
    false = [
        ObjectTree(object_id=name, children=[tree("never")])
        for each in known
        for name in get_all_nested_objects(each)
    ]
    other.reply_to(other.message(1), reply(7), bare=True, below=false, flowers=flowers)
    asks = [question(honest.node.node_id, 2)]
    ids = list((grid if bundles else plain).push_messages(asks))
    begun = time.monotonic()
    message = honest.message(1)
    assert number(message) == 2
    honest.reply_to(message, reply(8))
    (found,) = grid.pull_before(ids, grid.now + 5)
    assert number(found) == 8
    assert time.monotonic() - begun < 2


def test_a_node_sends_two_replies_at_a_time(server):
    """A third reply at the same time is refused, because it would occupy the server's threads."""
    node = FakeNode(server.address)
    signed = node.signed()
    line = b"POST /v1/fleet/edgewire/compact/push HTTP/1.1\r\n"
    head = line + b"host: here\r\ncontent-length: 9999\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(2):
            line = stack.enter_context(socket.create_connection(server.place, timeout=5))
            line.sendall(head + signed.ljust(400, b"\0"))
        time.sleep(0.3)
        assert node.post("push", signed.ljust(400, b"\0")).status_code == 429
    time.sleep(0.3)  # the first two connections have ended
    assert node.post("push", signed.ljust(400, b"\0")).status_code == 400


@pytest.mark.few(1)
@pytest.mark.parametrize("slow", ["store_message_and_object_tree", "get_message_res"])
def test_no_reply_is_lost_while_server_and_nodes_call_at_once(server, slow, monkeypatch):
    """Replies arrive at any moment of a pull, whole or object by object: each is handed out whole.

    A step of the server waits before and after its work, so that others come between two steps.
    """
    fast = getattr(server.state, slow)

    def waiting(*args, **options):
        time.sleep(0.002)
        found = fast(*args, **options)
        time.sleep(0.002)
        return found

    monkeypatch.setattr(server.state, slow, waiting)
    nodes, grid = [FakeNode(server.address) for _ in range(4)], bundled(server.begin_run())
    rounds = 30

    def answer(node):
        for each in range(rounds):
            message = node.message(wait=20)
            response = node.reply_to(message, reply(number(message)), bare=each % 2 == 0)
            for name in list(response.objects_to_push):
                node.push_object(message, response, name)

    threads = [threading.Thread(target=answer, args=(each,)) for each in nodes]
    for each in threads:
        each.start()
    for each in range(rounds):
        asked = [question(one.node.node_id, each) for one in nodes]
        found = grid.send_and_receive(asked, timeout=20)
        assert [one.has_content() and number(one) for one in found] == [each] * len(nodes)
    for each in threads:
        each.join()


def test_a_repeated_reply_counts_once(server):
    node, grid = node_and_grid(server)
    (asked,) = grid.push_messages([question(node.node.node_id)])
    message = node.message()
    for _ in range(2):
        node.reply_to(message, reply(5))
    (found,) = grid.pull_messages([asked])
    assert number(found) == 5
    node.reply_to(message, reply(5))  # too late, which is no error
    assert len(server.state.object_store) == 0


def test_a_repeated_message_counts_once(server):
    """A sender may repeat a message whose confirmation was lost; the node gets the message once."""
    node, grid = node_and_grid(server)
    message = question(node.node.node_id)
    assert grid.push_messages([message]) == grid.push_messages([message])
    node.reply_to(node.message(), reply(1))
    assert node.message() is None


def test_a_lost_message_is_handed_out_again(server):
    """The server sends a message again until the node replies to it, and never after that."""
    node, other = FakeNode(server.address), FakeNode(server.address)
    grid = bundled(server.begin_run())
    ids = grid.push_messages([question(node.node.node_id, each) for each in range(2)])
    for expected in range(2):
        assert [number(node.message()) for _ in range(3)] == [expected] * 3
        assert other.message() is None
        node.reply_to(node.message(), reply(expected))
    assert node.message() is None
    assert sorted(map(number, grid.pull_before(ids, grid.now + 5))) == [0, 1]


def test_a_message_that_no_process_of_the_node_survives_fails(server, caplog):
    """It goes to some processes of the node, to each as often as it asks; then others follow."""
    (node, grid), other = node_and_grid(server), FakeNode(server.address)
    there = [node.node.node_id, node.node.node_id, other.node.node_id]
    ids = grid.push_messages([question(each, n) for n, each in enumerate(there)])
    found = []
    for process in range(node_processes.MOST + 1):
        for _ in range(3):
            message = node.message(process=process.to_bytes(PROCESS, "big"))
            found.append(number(message))
    assert found == [0] * 3 * node_processes.MOST + [1] * 3
    assert number(other.message()) == 2
    (failed,) = grid.pull_before(ids, grid.now + 5)
    assert failed.metadata.reply_to_message_id == ids[0]
    assert failed.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert f"got a message {node_processes.MOST} times and died" in caplog.text
    node.reply_to(message, reply(7))
    other.reply_to(other.message(), reply(8))
    assert sorted(map(number, grid.pull_before(ids[1:], grid.now + 5))) == [7, 8]
    assert len(server.state.object_store) == 0


@pytest.mark.parametrize("how", ["stopped", "expired", "confirmed"])
def test_a_message_that_no_server_awaits_is_not_handed_out_again(server, how):
    node, flowers = FakeNode(server.address), server.begin_run()
    ttl = 0.3 if how == "expired" else math.inf
    bundled(flowers).push_messages([question(node.node.node_id)], ttl)
    message = node.message()
    run = flowers.run.run_id
    if how == "stopped":
        server.state.stop_run(run)
    elif how == "expired":
        time.sleep(0.4)
    else:  # like a node that replies by Flower's own calls
        name = message.metadata.message_id
        received = ConfirmMessageReceivedRequest(node=node.node, run_id=run, message_object_id=name)
        node.call(received, "confirm-message-received")
    assert node.message() is None


@pytest.mark.parametrize("body", [b"", b"no bundle", compact([("request", b"\xff" * 9)])])
def test_an_invalid_bundle_gives_one_line(server, body):
    node = FakeNode(server.address)
    found = node.post("push", node.signed() + body)
    assert found.status_code == 400
    assert "\n" not in found.json()["detail"]


@pytest.mark.parametrize("what", ["push", "pull"])
def test_a_serverapps_calls_need_its_token(server, what):
    found = httpx.post(f"http://{server.address}/v1/runtime/edgewire/{what}", content=b"")
    assert found.status_code == 401


def test_with_a_plain_flower_server_the_usual_calls_are_used(plain_server, caplog):
    grid = plain_server.begin_run()
    assert bundled(grid) is grid
    assert [each.message for each in caplog.records if "no bundles" in each.message]
    other = object()
    assert bundled(other) is other


def test_a_runs_files_are_handed_out(server, tmp_path):
    url = f"http://{server.address}/v1/control/edgewire/runs"
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "history.jsonl").write_bytes(b"0123456789")
    (tmp_path / "secret").write_bytes(b"secret")
    assert httpx.get(f"{url}/one").json() == {"history.jsonl": 10}
    assert httpx.get(f"{url}/one/history.jsonl").content == b"0123456789"
    assert httpx.get(f"{url}/one/history.jsonl?start=7").content == b"789"
    for path in ("two", "one/result.json", "..", "one/..", "%2e%2e",
                 "..%2fsecret", "one/..%2f..%2fsecret", "one/%2e%2e/%2e%2e/secret"):  # fmt: skip
        assert httpx.get(f"{url}/{path}").status_code in (403, 404)


def test_a_stopped_run_ends_its_serverapp_at_once(server):
    """A stopped run ends its ServerApp at once; Flower alone needs up to half a minute."""
    node, flowers = FakeNode(server.address), server.begin_run()
    grid = bundled(flowers)
    ids = grid.push_messages([question(node.node.node_id)])
    control = Superlink(server.address).control()
    stop = StopRunRequest(run_id=flowers.run.run_id)
    try:
        begun = time.monotonic()
        with later(0.2, lambda: control.StopRun(stop)), pytest.raises(RunEnded):
            grid.pull_before(ids, grid.now + 20)
    finally:
        control.close()
    assert time.monotonic() - begun < 5


def test_a_wait_ends_without_a_result_when_the_server_ends():
    async def nothing():
        return None

    async def waits():
        waiting = asyncio.create_task(KeyedCondition().wait_for("key", nothing, 60, lambda: 60))
        await asyncio.sleep(0.01)
        assert waiting.cancel()
        return await waiting

    assert asyncio.run(waits()) is None
