"""Answers of the server to run.py and to a ServerApp that come late or cut off change nothing."""

import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path

import httpx
import pytest
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.supercore.retry import http_retry
from flwr.superlink.grid.http_grid import HttpGrid

from edgewire.deploy.certificates import make_ca, make_server
from edgewire.engines import superlink
from edgewire.engines.control import follow
from edgewire.engines.download import ServedFiles, fetch_all, follow_files
from edgewire.engines.superlink_client import REPEATED, Superlink
from edgewire.machine.job import Job
from edgewire.protocol.choose_grid import bundled
from tests.deploy.processes import ROOT
from tests.deploy.served import FakeNode, Server, later, question
from tests.system.fault_field import Proxy

LARGE = 3 << 20  # bytes of a run's file


class Cutting:
    """A proxy that closes each of the next connections after some bytes of the server's answers.

    `after`: these numbers of bytes; further connections are not cut.
    """

    def __init__(self, target):
        self._target, self.after, self._open = target, [], []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *after):
        """Close all connections; cut the next ones after these numbers of bytes."""
        self.after = list(after)
        self.close_all()

    def close_all(self):
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listening.close()
        self.close_all()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        far = socket.create_connection(self._target)
        left = self.after.pop(0) if self.after else 1 << 40
        self._open += [near, far]
        threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
        with near, far, suppress(OSError):
            while data := far.recv(1 << 14):
                near.sendall(data[:left])
                left -= len(data)
                if left <= 0:
                    break
            for each in (near, far):
                each.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _copy(source, target):
        with suppress(OSError):
            while data := source.recv(1 << 14):
                target.sendall(data)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Yield a server with a run's files, a proxy before it, and a client behind the proxy."""
    monkeypatch.setattr(REPEATED, "wait_function", lambda seconds: None)
    folder = tmp_path / "runs" / "name"
    folder.mkdir(parents=True)
    (folder / "history.jsonl").write_text("row\n" * 50000)
    (folder / "model").write_bytes(bytes(range(256)) * (LARGE >> 8))
    with Server(output=tmp_path / "runs") as server, closing(Cutting(server.place)) as proxy:
        client = Superlink(proxy.address)
        yield server, proxy, client
        client.close()


CUTS = [[0], [1], [100], [0, 50, 3000, 100000], [150000, LARGE, 20, 0], [250, 250, 250]]


@pytest.mark.parametrize("after", CUTS, ids=str)
def test_files_are_copied_as_they_are(after, place, tmp_path):
    _, proxy, client = place
    there, here = tmp_path / "runs" / "name", tmp_path / "here"
    here.mkdir()
    proxy.cut(*after)
    source = ServedFiles(client.http, "name")
    REPEATED.invoke(follow_files, source, here)
    proxy.cut(*after)
    assert sorted(REPEATED.invoke(fetch_all, source, here)) == ["history.jsonl", "model"]
    for each in there.iterdir():
        assert (here / each.name).read_bytes() == each.read_bytes()


@pytest.mark.parametrize("after", [[0], [1], [0, 0, 0]], ids=str)
def test_a_start_whose_answer_is_lost_starts_one_run(after, place, monkeypatch):
    _, proxy, client = place
    monkeypatch.setattr(superlink, "wait_for_nodes", lambda *_, **__: proxy.cut(*after))
    with closing(client.control(REPEATED)) as control:
        job = Job(ROOT, {}, 1, Path())
        number = superlink.start_run(job, client, control, {"output": "name"}, 1.0)
        assert list(control.ListRuns(ListRunsRequest()).run_dict) == [number]


def test_a_runs_log_is_copied_once_and_its_end_is_seen(place, fab, tmp_path):
    """Connections are cut while the log is copied and the run's status is asked for."""
    server, proxy, client = place
    run, _ = server.begun(fab)
    polls = []

    def poll():
        polls.append(len(polls))
        proxy.cut(0, 10, 600)
        if len(polls) <= 4:
            server.state.add_task_log(server.task, f"line {len(polls)}\n")
        if len(polls) == 4:
            server.state.finish_task(server.task, "completed", "")

    with closing(client.control(REPEATED)) as control:
        status = follow(control, run.run_id, tmp_path / "log", poll)
    assert status.sub_status == "completed"
    assert (tmp_path / "log").read_text() == "".join(f"line {n}\n" for n in (1, 2, 3, 4))


HASTY = dict.fromkeys(("connect", "read", "write", "pool"), 0.2)  # seconds


@pytest.fixture
def still(tmp_path, monkeypatch):
    """Yield a proxy before a server with TLS, a ServerApp's grid behind it, and a node."""
    send = httpx.HTTPTransport.handle_request

    def hasty(transport, request):
        request.extensions["timeout"] = HASTY
        return send(transport, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", hasty)
    monkeypatch.setattr(http_retry, "exponential", lambda **_: repeat(0.05))
    make_ca(tmp_path)
    make_server(tmp_path, ["127.0.0.1"])
    with Server(keys=tmp_path) as server, closing(Proxy(server.place[1])) as proxy:
        run, token = server.begun()
        root = (tmp_path / "ca.crt").read_bytes()
        grid = HttpGrid(f"127.0.0.1:{proxy.port}", root_certificates=root, token=token)
        grid.set_run(run)
        node = FakeNode(server.address, tls=ssl.create_default_context(cafile=tmp_path / "ca.crt"))
        yield proxy, bundled(grid), node
        node.leave()


def test_a_server_that_stands_still_loses_no_call_of_a_serverapp(still):
    """As after a SIGSTOP: connections stay open, and handshakes are not answered."""
    proxy, grid, node = still

    def goes_on():
        proxy.set("open")
        if message := node.message():
            node.reply_to(message, message.content)

    asked = list[str]()
    calls = [
        lambda: grid.get_node_ids() == [node.node.node_id],
        lambda: asked.extend(grid.push_messages([question(node.node.node_id)])) or asked,
        lambda: grid.pull_before(asked, grid.now + 0.3),  # less than the server stands still
    ]
    for call in calls:
        proxy.set("still")
        began, now = time.monotonic(), grid.now
        with later(1.0, goes_on):
            assert call()
        assert time.monotonic() - began >= 1.0
    assert grid.now - now < 0.8
