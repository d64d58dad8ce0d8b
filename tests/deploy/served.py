"""A SuperLink in this process with the calls of `deploy.server.api`, and nodes that use it."""

import datetime
import hashlib
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import uvicorn
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto, user_config_from_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, sign_message
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.main import create_app

from edgewire.deploy import compact_bundle
from edgewire.deploy.device.app_runner import message_of
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.enrolment import Enrolment
from edgewire.deploy.monitoring.metrics import Monitor
from edgewire.deploy.monitoring.node_states import FleetStates
from edgewire.deploy.server.access import LocalOnly
from edgewire.deploy.server.api import BundleApi
from edgewire.deploy.server.connections import uvicorn_options
from edgewire.deploy.server.signed_uploads import BodyBudget, SignedUploads
from edgewire.deploy.signed_header import headers, sign_header
from edgewire.machine.own_package import load_object


class Server:
    """A SuperLink on a free port of 127.0.0.1.

    `bundling`: whether it has the project's own calls, which send a whole message in one request.
    `keys`: the folder that `edgewire.deploy.keys` writes, for TLS. `nodes`: the file of registered
    nodes. `budget`: the memory for large bodies. `kept`: seconds that idle connections stay open.
    `certificate`: the file that the metrics watch, if it is not that of `keys`.
    """

    def __init__(
        self,
        bundling=True,
        output=Path(),
        keys=None,
        nodes=None,
        budget=None,
        kept=5,
        certificate=None,
    ):
        self.app = app = create_app()
        if bundling:
            budget = budget or BodyBudget()
            tokens, self.states = None, FleetStates()
            if nodes is not None:
                ca = (keys or nodes.parent) / "ca.crt"
                tokens = Enrolment(nodes.with_name("tokens.json"), nodes, ca)
            ours = {"states": self.states, "enrolment": tokens}
            app.add_middleware(BundleApi, output=output, budget=budget, **ours)
            app.add_middleware(SignedUploads, budget=budget)
            cert = certificate or (keys and keys / "server.crt")
            app.add_middleware(Monitor, output=output, certificate=cert, states=self.states)
        app.add_middleware(LocalOnly)
        self.state = app.state.linkstate_factory.state()
        tls, files = {}, None
        if keys is not None:
            files = keys / "server.crt", keys / "server.key"
            tls = dict(zip(("ssl_certfile", "ssl_keyfile"), files, strict=True))
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.place = self._socket.getsockname()
        self.address = "{}:{}".format(*self.place)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, timeout_keep_alive=kept, **tls, **uvicorn_options(files)
            )
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error):
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    def begin_run(self, app=b""):
        """Begin a run of an app's bundle; return the Flower grid of its ServerApp."""
        run, token = self.begun(app)
        grid = HttpGrid(self.address, insecure=True, token=token)
        grid.set_run(run)
        return grid

    def begun(self, app=b""):
        """Begin a run of an app's bundle; return the run and the token of its ServerApp."""
        digest = self.state.store_fab(Fab(hashlib.sha256(app).hexdigest(), app, {}))
        run = self.state.create_run(
            "a/b", "1", digest, {}, NOOP_FEDERATION_ID, None, "<id:none>", TaskType.SERVER_APP
        )
        self.task = task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        token = self.state.claim_task(task)
        self.state.activate_task(task)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, 1
        return self.state.get_run_info(run_ids=[run])[0], token


class FakeNode:
    """A node that registers itself and sends single requests when a test calls for them.

    `tls`: the SSL context of its connections; None: no TLS.
    """

    def __init__(self, address, interval=30, tls=None):
        self._key, _ = generate_key_pairs()
        self.fleet = FleetClient(address, self._key, insecure=True)
        self.public = self.fleet.public_key
        url = f"{'http' if tls is None else 'https'}://{address}"
        # Without certificates, because loading the system's certificates takes longer than a call.
        self.http = httpx.Client(base_url=url, trust_env=False, verify=tls or False, timeout=120)
        self.call(fleet_pb2.RegisterNodeFleetRequest(public_key=self.public), "register-node")
        activate = fleet_pb2.ActivateNodeRequest(
            public_key=self.public, heartbeat_interval=interval
        )
        body = self.call(activate, "activate-node").content
        self.node = Node(node_id=fleet_pb2.ActivateNodeResponse.FromString(body).node_id)

    def leave(self):
        request = fleet_pb2.DeactivateNodeRequest(node_id=self.node.node_id)
        self.call(request, "deactivate-node")
        self.http.close()
        self.fleet.close()

    def signed(self, wait=0):
        """Return the signed header of a compact call; `wait`: whole seconds."""
        return sign_header(self.node.node_id, wait, lambda stamp: sign_message(self._key, stamp))

    def headers(self):
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        signed = headers(self.public, stamp, sign_message(self._key, stamp.encode()))
        return {"content-type": "application/protobuf", **signed}

    def call(self, request, path):
        """Send one of Flower's own requests as this node; raise an error if it is refused."""
        found = self.http.post(
            f"/v1/fleet/{path}", content=request.SerializeToString(), headers=self.headers()
        )
        return found.raise_for_status()

    def post(self, what, content):
        """Send a compact call, "pull" or "push"; return the server's response."""
        return self.http.post(f"/v1/fleet/edgewire/compact/{what}", content=content, timeout=60)

    def message(self, wait=0, process=b""):
        """Return a message if one arrives within `wait` seconds, else None.

        `process`: the number of the node's process.
        """
        content = self.post("pull", self.signed(wait) + process).raise_for_status().content
        if not content:
            return None
        (_, head), *parts = compact_bundle.parts_of(content, 1 << 30)
        return message_of(fleet_pb2.PullMessagesResponse.FromString(head), dict(parts))

    def reply_to(self, message, content, *, bare=False, below=(), instead=None, flowers=False):
        """Push a reply, with `bare=True` without its objects; return the server's response.

        `below`: trees of objects that the reply announces as well. `instead`: a function of the
        reply's own content, of which it returns the tree and the objects that are sent instead.
        `flowers`: by Flower's own call, without objects.
        """
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = self.node.node_id
        request = fleet_pb2.PushMessagesRequest(node=self.node)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.objects = {n: o.deflate() for n, o in get_all_nested_objects(reply).items()}
            request.messages_list.append(message_to_proto(remove_content_from_message(reply)))
            tree = get_object_tree(reply)
        tree.children.extend(below)
        if instead is not None:
            tree, self.objects = instead(self.objects[tree.object_id].partition(b"\0")[2])
            request.messages_list[0].metadata.message_id = tree.object_id
        request.message_object_trees.append(tree)
        if flowers:
            return self.call(request, "push-messages")
        parts = [] if bare else [*self.objects.items()]
        received = message_pb2.ConfirmMessageReceivedRequest(
            node=self.node,
            run_id=message.metadata.run_id,
            message_object_id=message.metadata.message_id,
        )
        parts.append(("confirm", received.SerializeToString()))
        body = compact_bundle.compact([("request", request.SerializeToString()), *parts])
        found = self.post("push", self.signed() + body)
        return fleet_pb2.PushMessagesResponse.FromString(found.raise_for_status().content)

    def push_object(self, message, response, name):
        """Push one object of the last reply by Flower's own call."""
        request = message_pb2.PushObjectRequest(
            node=self.node,
            run_id=message.metadata.run_id,
            object_id=name,
            object_content=self.objects[name],
            session_id=response.session_id,
        )
        self.call(request, "push-object")


class Fleet:
    """Nodes in a thread of this process that reply with the project's ClientApp.

    `late`: one more node joins after this many replies. `folders`: each node's folder of photos.
    `pause`: seconds between two looks for messages.
    """

    def __init__(self, address, count, late=None, folders=None, pause=0.01):
        self._folders, self._pause = folders, pause
        self._address, self._late, self._replies = address, late, 0
        self._count = count
        self._nodes = [FakeNode(address) for _ in range(count)]
        self._contexts = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._done.set()
        self._thread.join()
        for each in self._nodes:
            each.leave()

    def _serve(self):
        while not self._done.is_set():
            for index, node in enumerate(self._nodes):
                if (message := node.message()) is not None:
                    reply = load_object("edgewire.client.app:app")(
                        message, self._context(index, message)
                    )
                    with suppress(httpx.HTTPStatusError):  # the run is over
                        node.reply_to(message, reply.content)
                    self._replies += 1
            time.sleep(self._pause)
            if self._late is not None and self._replies >= self._late:
                self._nodes, self._late = [*self._nodes, FakeNode(self._address)], None

    def _context(self, index, message):
        run, node = message.metadata.run_id, self._nodes[index]
        if (run, index) not in self._contexts:
            body = node.call(GetRunRequest(node=node.node, run_id=run), "get-run").content
            config = user_config_from_proto(GetRunResponse.FromString(body).run.override_config)
            place = {"partition-id": index % self._count, "num-partitions": self._count}
            if self._folders is not None:
                place = {**place, "data": str(self._folders[index])}
            context = Context(run, node.node.node_id, place, RecordDict(), config)
            self._contexts[run, index] = context
            TaskIdentity.task_id, TaskIdentity.run_id = 1, run
            TaskIdentity.node_id = node.node.node_id
        return self._contexts[run, index]


def question(node, number=0):
    """Return a message to a node."""
    content = RecordDict({"question": ConfigRecord({"number": number})})
    return Message(content, node, "query")


@contextmanager
def later(seconds, call):
    """Make a call in another thread after some seconds, while the context is open."""
    timer = threading.Timer(seconds, call)
    timer.start()
    try:
        yield
    finally:
        timer.join()
