"""Many clients send and get large bodies at once, with every call that has large bodies.

The server is a process of its own, with TLS and a probe in its event loop
(`papers.benchmarks.devices.fleet.probed_server`). This module starts this process, too.
"""

import gc
import hashlib
import pickle
import select
import ssl
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from edgewire.deploy.certificates import make_ca, make_server
from edgewire.deploy.server.server import KEPT
from edgewire.protocol.choose_grid import bundled
from papers.benchmarks.devices.fleet.probed_server import Probe, most
from tests.deploy.processes import ROOT
from tests.deploy.served import FakeNode, Server

APP = 2 << 20  # bytes
BEATS = 10  # seconds between two heartbeats of the run's task


def serve(keys, file):
    """Serve until standard input ends; print the address, the run and the ServerApp's token."""
    server = Server(keys=keys, kept=KEPT)
    gc.freeze()  # as `edgewire.deploy.server` does
    server.app.add_middleware(Probe, file=file)
    with server:
        run, token = server.begun(np.random.default_rng(1).bytes(APP))
        print(b64encode(pickle.dumps((server.address, run, token))).decode(), flush=True)
        while not select.select([sys.stdin], [], [], BEATS)[0]:
            server.state.acknowledge_task_heartbeat(server.task)


class Load:
    """A server with a run, and `count` nodes of it; each payload has `size` bytes."""

    def __init__(self, folder, count, size):
        self.size, self.probed = size, folder / "probed"
        self._tls = ssl.create_default_context(cafile=folder / "ca.crt")
        command = [sys.executable, "-m", "tests.deploy.loaded", str(folder), str(self.probed)]
        pipe = subprocess.PIPE
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, cwd=ROOT)
        address, self.run, token = pickle.loads(b64decode(self.process.stdout.readline()))
        TaskIdentity.task_id, TaskIdentity.node_id = self.run.primary_task_id, 1
        TaskIdentity.run_id = self.run.run_id
        root = (folder / "ca.crt").read_bytes()
        grid = HttpGrid(address, root_certificates=root, token=token)
        grid.set_run(self.run)
        self.grid = bundled(grid)
        self.nodes = [FakeNode(address, tls=self._tls) for _ in range(count)]

    def payload(self, number):
        """Return a record of `size` random bytes; the same number gives the same bytes."""
        found = np.random.default_rng(number).integers(0, 256, self.size, np.uint8)
        return RecordDict({"payload": ArrayRecord([found])})

    def apps(self):
        """Let all nodes download the app at once."""
        self._each(self._app)

    def rounds(self):
        """Send all nodes a message with one payload, and take a reply with a payload from each.

        Every second node uses Flower's own calls to get and send the payload.
        """
        content = self.payload(0)
        asked = self.grid.push_messages(
            Message(content, each.node.node_id, "query") for each in self.nodes
        )
        waiting, replies = set(asked), []
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            answers = [pool.submit(self._answer, n, node) for n, node in enumerate(self.nodes)]
            while waiting and not any(each.done() and each.exception() for each in answers):
                found = self.grid.pull_before(waiting, self.grid.now + 5)
                waiting -= {each.metadata.reply_to_message_id for each in found}
                replies += found
            for each in answers:
                each.result()
        for each in replies:
            number = next(n for n, node in enumerate(self.nodes)
                          if node.node.node_id == each.metadata.src_node_id)  # fmt: skip
            (got,) = each.content["payload"].values()
            (sent,) = self.payload(number + 1)["payload"].values()
            assert got.data == sent.data
        assert len(replies) == len(self.nodes)

    def names(self, count):
        """Let all nodes announce a reply of `count` objects at once, by Flower's own call."""
        asked = self.grid.push_messages(
            Message(RecordDict(), each.node.node_id, "query") for each in self.nodes
        )
        below = [
            ObjectTree(object_id=hashlib.sha256(n.to_bytes(4)).hexdigest()) for n in range(count)
        ]

        def announce(node):
            node.reply_to(node.message(5), RecordDict(), below=below, flowers=True)

        self._each(announce)
        return asked

    def most(self, since):
        """Return the longest pauses of the server's event loop since a time."""
        now = time.monotonic()
        time.sleep(1.5)  # the probe writes once a second
        return most(self.probed, since, now)

    def _each(self, call):
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(call, self.nodes))

    def _app(self, node):
        asks = GetFabRequest(node=node.node, hash_str=self.run.fab_hash, run_id=self.run.run_id)
        fab = GetFabResponse.FromString(node.call(asks, "get-fab").content).fab
        assert hashlib.sha256(fab.content).hexdigest() == self.run.fab_hash

    def _answer(self, number, node):
        message = node.message(20)
        content = self.payload(number + 1)
        if number % 2:
            self._pull(node, message)
            response = node.reply_to(message, content, bare=True)
            for name in node.objects:
                node.push_object(message, response, name)
        else:
            node.reply_to(message, content)

    def _pull(self, node, message):
        """Pull a message's largest object by Flower's own call."""
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        name = max(objects, key=lambda each: len(objects[each]))
        asks = PullObjectRequest(node=node.node, run_id=self.run.run_id, object_id=name)
        found = PullObjectResponse.FromString(node.call(asks, "pull-object").content)
        assert found.object_content == objects[name]


@contextmanager
def loaded(folder, count, size):
    """Yield a `Load` whose files are in a folder."""
    make_ca(folder)
    make_server(folder, ["127.0.0.1"])
    load = Load(folder, count, size)
    try:
        yield load
    finally:
        load.process.stdin.close()
        load.process.kill()
        load.process.wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
