"""A client outside the server's machine cannot read or change a server's runs and nodes.

Here a client counts as outside if it connects to an address of this machine other than loopback.
`python -m papers.benchmarks.devices.namespaces --outside` sends the requests from a network
namespace.
"""

import json
import socket
import ssl
import sys
from base64 import b64decode
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node

from edgewire.deploy import keys
from edgewire.deploy.certificates import private_key
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.transport import ids_of
from tests import fork_server
from tests.deploy.processes import ROOT, eventually
from tests.deploy.servers import COUNTING, Field

# 410: this token is unknown; 412: a node with an unknown key is not activated
REFUSED = {400, 401, 403, 404, 405, 410, 412}
MODEL = np.full(5000, 0.1).tobytes()  # in the counting app's first message


def own_address():
    """Return an address of this machine that is not a loopback one; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Start a server with TLS and keys, a run, and a node for which a message waits."""
    if (address := own_address()) is None:
        pytest.skip("this machine has no address but loopback ones: nobody is outside")
    folder = tmp_path_factory.mktemp("outside")
    made, ca = folder / "keys", str(folder / "keys" / "ca.crt")

    with Field(folder) as f:
        inside = f"127.0.0.1:{f.port}"

        def key(*words):
            assert keys.main(["--keys", str(made), "--superlink", inside, *words]) == 0

        key("server", address)
        key("node", "kitchen")
        f.environment["SSL_CERT_FILE"] = ca
        f.serve(["--keys", str(made), "--state", str(folder / "state")])
        key("register", "kitchen")
        secret = private_key(made / "nodes" / "kitchen.key")
        node = FleetClient(f"{address}:{f.port}", secret, root_certificates=made / "ca.crt")
        activate = ActivateNodeRequest(public_key=node.public_key, heartbeat_interval=300)
        number = node.call(activate, ActivateNodeResponse).node_id
        f.connect(ca)
        run, app = f.submit(COUNTING, nodes=1, rounds=1, out=str(folder / "out.json"))
        pulled = eventually(lambda: message(node, number), 60)
        yield SimpleNamespace(
            address=node.address, ca=ca, control=f.control, node=node, number=number, run=run,
            app=app, objects=ids_of(pulled.message_object_trees[0]),
        )  # fmt: skip
        node.close()


def message(node, number):
    """Pull a node's messages; return the response if it holds any, else None."""
    request = PullMessagesRequest(node=Node(node_id=number))
    found = node.call(request, PullMessagesResponse)
    return found if found.messages_list else None


def told(world):
    """Return the server's runs and nodes, as a client on the server's machine sees them."""
    runs = world.control.ListRuns(ListRunsRequest()).run_dict
    nodes = world.control.ListNodes(ListNodesRequest()).nodes_info
    return (
        {number: run.status.status for number, run in runs.items()},
        [(each.node_id, each.status, each.online_until) for each in nodes],
    )


def test_without_a_registered_key_nothing_can_be_read_or_changed(world):
    before = told(world)
    assert before[0] == {world.run: "running"}
    done = fork_server.run(
        [sys.executable, "-m", "tests.deploy.outsider", world.address, world.ca, str(world.number),
         str(world.run), world.app, *world.objects],
        cwd=ROOT, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tries = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(tries) > 300
    assert {(name, path) for name, path, status, _ in tries if status not in REFUSED} == set()
    for name, path, status, body in tries:
        if not path.startswith("/v1/fleet/"):
            assert status == 403, (name, path)
        assert len(b64decode(body)) < 1000
        assert MODEL[:32] not in b64decode(body)
    assert told(world) == before


PATHS = ["edgewire/compact/push", "edgewire/compact/pull"]
PATHS += ["push-object", "push-messages", "activate-node"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("said", ["content-length: 300000000", "transfer-encoding: chunked"])
def test_a_large_request_without_a_registered_key_is_not_read(world, path, said):
    """The server refuses a request without a valid key before it reads the body into memory."""
    host, _, port = world.address.rpartition(":")
    trusted = ssl.create_default_context(cafile=world.ca)
    head = f"POST /v1/fleet/{path} HTTP/1.1\r\nhost: {host}\r\n{said}\r\n"
    kind = "content-type: application/x-protobuf\r\n\r\n"
    piece = b"2710\r\n" + b"0" * 10_000 + b"\r\n" if "chunked" in said else b"0" * 10_000
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        trusted.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall((head + kind).encode() + piece)
        status = int(connection.recv(100).split()[1])
    assert status in {400, 401, 411, 413}


@pytest.mark.system
def test_a_node_with_a_registered_key_gets_the_model(world):
    """A registered node gets the model, so the refused requests above ask for real data."""
    found = b""
    for name in world.objects:
        request = PullObjectRequest(
            node=Node(node_id=world.number), run_id=world.run, object_id=name
        )
        found += world.node.call(request, PullObjectResponse).object_content
    assert MODEL in found
    assert world.node.bundles()
