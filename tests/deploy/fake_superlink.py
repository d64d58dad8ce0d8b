"""A fake SuperLink in this process, with faults on demand."""

import hashlib
import threading
import time
from collections import defaultdict
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from edgewire.deploy import compact_bundle
from edgewire.deploy.device.transport import ids_of
from edgewire.deploy.server.duplicates import SIZE
from edgewire.deploy.signed_header import read_header

RUN = 77
LIMIT = 1 << 30


class FakeSuperLink(ThreadingHTTPServer):
    """A fake SuperLink: an HTTP server for the run of one app.

    `faults`: for each call, what fails at its next uses: "lost" (the request never arrives),
    "unanswered" (the request arrives, its answer does not) or an HTTP status. `bundled`: the server
    has the project's calls, which send a whole message in one request.
    """

    daemon_threads = True

    def __init__(self, fab, *, bundled=False, redelivers=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.fab, self.digest = fab, hashlib.sha256(fab).hexdigest()
        self.bundled, self.redelivers = bundled, redelivers
        self.lock = threading.RLock()
        self.nodes, self.online, self.objects = {}, set(), {}
        self.queue, self.delivered = [], {}
        self.replies, self.contents, self.pending, self.seen = {}, {}, set(), set()
        self.calls, self.faults = [], defaultdict(list)
        self.registers, self.code, self.clock = True, None, 0.0
        self.over = False
        self.begin_run(RUN)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def begin_run(self, number):
        self.run = TaskIdentity.run_id = TaskIdentity.task_id = number
        TaskIdentity.node_id = 1

    @property
    def address(self):
        return f"127.0.0.1:{self.server_port}"

    def stop(self):
        self.shutdown()
        self.server_close()

    def ask(self, content, kind, node=None):
        """Queue a message to a node, by default the first one; return the message's id."""
        node = node or next(iter(self.nodes.values()))
        message = Message(content, node, kind)
        tree = get_object_tree(message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        proto = message_to_proto(remove_content_from_message(message))
        with self.lock:
            self.objects |= {k: o.deflate() for k, o in get_all_nested_objects(message).items()}
            self.queue.append((proto, tree))
        return tree.object_id

    def said(self, name):
        """Return the reply to a message if all its objects have arrived, else None."""
        with self.lock:
            request = self.replies.get(name)
            if request is None:
                return None
            tree = request.message_object_trees[0]
            if not set(ids_of(tree)) <= set(self.contents):
                return None
            return inflate_object_from_contents(tree.object_id, dict(self.contents))

    # The calls of the Fleet API.

    def register_node(self, data):
        request = fleet_pb2.RegisterNodeFleetRequest.FromString(data)
        if not self.registers:
            return 412, b'{"code":2001,"detail":"no"}'
        if request.public_key in self.nodes:
            return 409, b'{"code":23,"detail":"in use"}'
        self.nodes[request.public_key] = 1000 + len(self.nodes)
        return fleet_pb2.RegisterNodeFleetResponse(node_id=self.nodes[request.public_key])

    def activate_node(self, data):
        node = self.nodes.get(fleet_pb2.ActivateNodeRequest.FromString(data).public_key)
        if node is None or node in self.online:
            return 412, b'{"code":2004,"detail":"Failed to activate SuperNode."}'
        self.online.add(node)
        return fleet_pb2.ActivateNodeResponse(node_id=node)

    def deactivate_node(self, data):
        node = fleet_pb2.DeactivateNodeRequest.FromString(data).node_id
        if node not in self.nodes.values():
            return 401, b""
        if node not in self.online:
            return 412, b'{"code":2005,"detail":"no"}'
        self.online.discard(node)
        return fleet_pb2.DeactivateNodeResponse()

    def send_node_heartbeat(self, data):
        node = heartbeat_pb2.SendNodeHeartbeatRequest.FromString(data).node.node_id
        if node not in self.nodes.values():
            return 401, b""
        self.online.add(node)
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def pull_messages(self, data):
        if self.redelivers:  # a node that pulls has replied to all messages that reached it
            lost = [m for name, m in self.delivered.items() if name not in self.replies]
            self.queue[:0] = lost
        if not self.queue:
            return fleet_pb2.PullMessagesResponse()
        proto, tree = self.queue.pop(0)
        self.delivered[tree.object_id] = proto, tree
        return fleet_pb2.PullMessagesResponse(messages_list=[proto], message_object_trees=[tree])

    def push_messages(self, data):
        if self.over:
            return 403, b'{"code":2007,"detail":"over"}'
        request = fleet_pb2.PushMessagesRequest.FromString(data)
        metadata, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        assert metadata.message_id == tree.object_id
        before = self.replies.setdefault(metadata.reply_to_message_id, request)
        assert before == request, "another reply to the same message"
        # A ServerApp has it, so the server treats the message as unknown.
        if metadata.reply_to_message_id in self.seen:
            return fleet_pb2.PushMessagesResponse(session_id="another")
        missing = [name for name in ids_of(tree) if name not in self.contents]
        self.pending.update(missing)
        self.seen.add(metadata.reply_to_message_id)
        return fleet_pb2.PushMessagesResponse(objects_to_push=missing, session_id="s")

    def get_run(self, data):
        if self.over:
            return 403, b'{"code":2007,"detail":"over"}'
        run = run_pb2.Run(run_id=self.run, fab_id="tests/counting", fab_version="1.0.0")
        run.fab_hash, run.series_id = self.digest, self.run
        return run_pb2.GetRunResponse(run=run)

    def get_fab(self, data):
        fab = fab_pb2.Fab(hash_str=self.digest, content=self.fab)
        return fab_pb2.GetFabResponse(fab=fab)

    def push_object(self, data):
        request = message_pb2.PushObjectRequest.FromString(data)
        stored = request.object_id in self.pending and request.session_id != "another"
        if stored:
            self.pending.discard(request.object_id)
            self.contents[request.object_id] = request.object_content
        return message_pb2.PushObjectResponse(stored=stored)

    def pull_object(self, data):
        name = message_pb2.PullObjectRequest.FromString(data).object_id
        content = self.objects.get(name)
        return message_pb2.PullObjectResponse(
            object_found=content is not None, object_available=content is not None,
            object_content=content,
        )  # fmt: skip

    def confirm_message_received(self, data):
        name = message_pb2.ConfirmMessageReceivedRequest.FromString(data).message_object_id
        if name in self.delivered:
            for each in ids_of(self.delivered[name][1]):
                self.objects.pop(each, None)
        return message_pb2.ConfirmMessageReceivedResponse()

    def edgewire_compact_pull(self, data):
        signed, number = read_header(data)
        assert signed.node_id in self.nodes.values()
        assert len(number) == SIZE
        response = self.pull_messages(b"")
        objects = [n for tree in response.message_object_trees for n in ids_of(tree)]
        parts = [("response", response.SerializeToString())]
        parts += [(name, self.objects[name]) for name in objects]
        return compact_bundle.compact(parts) if response.messages_list else b""

    def edgewire_compact_push(self, data):
        parts = compact_bundle.parts_of(read_header(data)[1], LIMIT)
        (first, request), *objects, (last, confirm) = parts
        assert (first, last) == ("request", "confirm")
        answer = self.push_messages(request)
        if not isinstance(answer, tuple):
            self.contents |= dict(objects)
            self.confirm_message_received(confirm)
        return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else a reply's body waits 40 ms for the acknowledgement of its head.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return formatdate(time.time() - self.server.clock, usegmt=True)

    def do_GET(self):
        has = self.server.bundled and self.path == "/v1/fleet/edgewire"
        says = {"edgewire-compact": str(compact_bundle.FORM)} if has else {}
        self.answer(200 if has else 404, b"1" if has else b"", says)

    def do_POST(self):
        server = self.server
        data = self.rfile.read(int(self.headers["content-length"]))
        call = self.path.removeprefix("/v1/fleet/").replace("-", "_").replace("/", "_")
        signed = {"flwr-public-key", "flwr-timestamp", "flwr-signature"} & {*self.headers}
        assert len(signed) == (0 if "compact" in call else 3)
        server.calls.append(call)
        fault = server.faults[call].pop(0) if server.faults[call] else None
        if fault == "lost":
            self.close_connection = True
            return
        if isinstance(fault, int):
            self.answer(fault, b"")
            return
        with server.lock:
            made = getattr(server, call)(data)
        if fault == "unanswered":
            self.close_connection = True
            return
        if call.startswith("edgewire") and call.endswith("pull") and len(made) < 40:
            time.sleep(0.02)  # waits like a real server, but for a shorter time
        if isinstance(made, tuple):
            self.answer(*made)
        else:
            self.answer(200, made if isinstance(made, bytes) else made.SerializeToString())

    def answer(self, status, content, headers=()):
        self.send_response(status)
        for name in headers:
            self.send_header(name, headers[name])
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
