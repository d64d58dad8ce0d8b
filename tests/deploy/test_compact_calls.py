"""A node's bundled calls (`edgewire.deploy.server.api`): they pull messages and push replies."""

import gzip
import time

import httpx
import pytest
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesRequest
from flwr.proto.node_pb2 import Node

from edgewire.deploy.compact_bundle import FORM
from edgewire.deploy.device.client import COMPACT, ServerRefusal, says_bundled
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.signed_header import sign_header
from edgewire.protocol.choose_grid import bundled
from tests.deploy.served import FakeNode, Server, question


def pulled(node, number=None):
    """Let a node pull by the calls of `FleetClient`, as the node `number`; return the result."""
    return node.fleet.pull(PullMessagesRequest(node=number or node.node))


@pytest.fixture(scope="module")
def server():
    with Server() as there:
        yield there


@pytest.fixture
def node(server):
    made = FakeNode(server.address)
    assert made.fleet.bundles()
    yield made
    made.leave()


def test_a_server_with_another_compact_format_has_no_bundled_calls():
    numbers = (str(FORM), str(FORM + 1))
    same, other = (httpx.Response(200, text="1", headers={COMPACT: n}) for n in numbers)
    assert says_bundled(same)
    assert not says_bundled(other)


def test_a_pull_is_a_heartbeat(server):
    node = FakeNode(server.address, interval=10)
    (before,) = server.state.get_node_info(node_ids=[node.node.node_id])
    until = before.online_until
    assert node.fleet.counted_until == 0
    grid = bundled(server.begin_run())
    grid.push_messages([question(node.node.node_id)])
    begun = time.monotonic()
    pulled(node)
    (after,) = server.state.get_node_info(node_ids=[node.node.node_id])
    assert after.online_until > until
    assert after.heartbeat_interval == 10.0
    assert begun < node.fleet.counted_until <= begun + 50


def test_a_node_with_another_key_gets_nothing(server, node):
    other = FakeNode(server.address)
    grid = bundled(server.begin_run())
    grid.push_messages([question(node.node.node_id)])
    for asked in (node.node, Node(node_id=12345)):
        with pytest.raises(ServerRefusal, match="401"):
            pulled(other, asked)
    url = f"http://{server.address}/v1/fleet/edgewire/compact/pull"
    late = sign_header(node.node.node_id, 0, lambda stamp: b"no signature")
    assert httpx.post(url, content=late).status_code == 401
    assert httpx.post(url, content=b"").status_code == 400
    assert len(pulled(node)[0].messages_list) == 1


def test_an_apps_bundle_is_sent_compressed(server, node):
    content = b"the same again " * 20000
    run = server.begin_run(content).run
    request = GetFabRequest(node=node.node, hash_str=run.fab_hash, run_id=run.run_id)
    assert node.fleet.call(request, GetFabResponse).fab.content == content
    other = FakeNode(server.address)  # this node sends the headers of Flower's own nodes
    request.node.CopyFrom(other.node)
    found = other.call(request, "get-fab")
    assert found.num_bytes_downloaded < len(content) / 50
    assert GetFabResponse.FromString(found.content).fab.content == content
    other.leave()


def test_an_app_is_compressed_once_for_all_nodes(server, node, monkeypatch):
    made, real = [], gzip.compress
    monkeypatch.setattr(
        gzip, "compress", lambda content, **options: made.append(1) or real(content, **options)
    )
    contents = [bytes([n]) * 100000 for n in range(3)]
    for content in contents:
        run = server.begin_run(content).run
        request = GetFabRequest(node=node.node, hash_str=run.fab_hash, run_id=run.run_id)
        for _ in range(3):
            assert node.fleet.call(request, GetFabResponse).fab.content == content
        plain = {**node.headers(), "accept-encoding": "identity"}
        path, body = "/v1/fleet/get-fab", request.SerializeToString()
        found = node.http.post(path, content=body, headers=plain)
        assert GetFabResponse.FromString(found.content).fab.content == content
        request.hash_str = "0" * 64
        with pytest.raises(ServerRefusal):
            node.fleet.call(request, GetFabResponse)
        request.hash_str = run.fab_hash
        assert node.http.post(path, content=body).status_code >= 400  # nobody has signed it
    assert len(made) == 3


class Counted:
    """A fake client that records heartbeats."""

    def __init__(self, seconds):
        self.counted_until, self.beats = time.monotonic() + seconds, []
        self.address, self.public_key = "here", b"key"

    def call(self, request, kind, **options):
        self.beats.append(time.monotonic())
        return kind(node_id=5) if kind is ActivateNodeResponse else kind(success=True)


def test_a_node_that_pulls_sends_no_heartbeats(tmp_path):
    fleet = Counted(0.3)
    member = Membership(fleet, NodeFolder(tmp_path), registers=False, beats=0.02)
    member.enter()
    time.sleep(0.6)
    member.stop()
    _, *beats = fleet.beats
    assert len(beats) > 3
    assert min(beats) > fleet.counted_until
