"""`engine=superlink` refuses wrong options, waits for nodes, and copies results back.

Runs with a real server are in `tests/deploy/test_engine.py`.
"""

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flwr.common.serde import user_config_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse, StartRunResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.supercore.fab import Fab

from edgewire.engines import download, superlink
from edgewire.engines.download import LocalFiles, fetch_all, follow_files
from edgewire.engines.superlink import expect_there, refuse, wait_for_nodes
from edgewire.engines.superlink_client import Superlink
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.job import PLACE, Job

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Nodes:
    """A fake Control API: at each call one more node is online, others are offline."""

    def __init__(self, online):
        self.online = iter(online)

    def ListNodes(self, request):
        def node(status, until):
            return NodeInfo(status=status, online_until=NOW.timestamp() + until)

        there = [node("online", 9)] * next(self.online)
        gone = [node("online", -1), node("offline", 9), node("registered", 0)]
        return ListNodesResponse(nodes_info=[*there, *gone], now=NOW.isoformat())


@contextmanager
def answering(status, text=b""):
    """Answer all requests with a status; yield the address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("options", "address", "wait", "line"),
    [
        ({}, None, 1.0, "needs engine.address=HOST:PORT"),
        ({}, "a:1", -1.0, "engine.wait must be 0 or more"),
        ({}, "a:1", float("nan"), "engine.wait must be 0 or more"),
        ({"only_virtual": "network.loss=0.1: give network.loss=0"}, "a:1", 1.0, "no virtual clock"),
        ({"verbose": True}, "a:1", 1.0, "its log goes to superlink.log"),
    ],
)
def test_options_without_an_effect_are_refused(options, address, wait, line):
    with pytest.raises(UsageError, match=line):
        refuse(Job(Path(), {}, 3, Path(), **options), address=address, wait=wait)


def test_it_waits_for_nodes_and_logs_their_number(monkeypatch, caplog):
    monkeypatch.setattr(superlink.time, "sleep", lambda seconds: None)
    wait_for_nodes(Nodes([0, 0, 1, 1, 2]), 2, 60)
    assert caplog.messages == [f"waiting for nodes: {n} of 2 are online" for n in (0, 1)]


def test_missing_and_too_many_nodes_give_one_line():
    with pytest.raises(EngineError, match=r"1 of 2 nodes came online .* or give nodes=1$"):
        wait_for_nodes(Nodes([1]), 2, 0)
    with pytest.raises(UsageError, match=r"3 nodes are online, more than nodes=2: .* give nodes=3"):
        wait_for_nodes(Nodes([3]), 2, 0)
    wait_for_nodes(Nodes([3]), 2, 0, more=True)  # a resumed run accepts more nodes


ADDRESSES = ["", "here", "here:", ":1", "a b:1", "http://a:1", "a:b", "fe80::1:8000"]
ADDRESSES += ["a:0", "a:65536", "127.0.0.1:99999", "[::1]:70000"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(UsageError, match=r"give HOST:PORT, as in 127\.0\.0\.1:8000 or \[::1\]:"):
        Superlink(address)


@pytest.mark.parametrize(
    ("status", "kind", "line"),
    [
        (403, UsageError, "takes runs from its own machine alone.*ssh -L"),
        (404, UsageError, "no SuperLink answers"),
        (502, EngineError, "no SuperLink answers"),
    ],
)
def test_the_answering_server_must_be_a_superlink(status, kind, line):
    with answering(status) as address, pytest.raises(EngineError, match=line) as raised:
        Superlink(address)
    assert raised.type is kind  # a server that is down may come back


def test_an_invalid_certificate_gives_one_line(tmp_path):
    (tmp_path / "a").write_text("no certificate")
    for name, line in (("a", "no certificate"), ("b", "No such file")):
        with pytest.raises(UsageError, match=line):
            Superlink("127.0.0.1:9", str(tmp_path / name))


def test_flowers_own_server_has_no_bundles():
    with answering(200, b"0") as address:
        superlink = Superlink(address)
        assert not superlink.bundles
        superlink.close()


def test_a_run_that_the_server_no_longer_has_keeps_its_files(tmp_path):
    gone, here = LocalFiles(tmp_path / "gone"), tmp_path / "here"
    here.mkdir()
    expect_there(gone, here, "run")  # the run has not begun, so nothing can be lost
    (here / "history.jsonl").write_text("{}\n")
    with pytest.raises(EngineError, match="the server has nothing of this run"):
        expect_there(gone, here, "run")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "history.jsonl").write_text("{}\n")
    expect_there(gone, here, "run")
    assert (here / "history.jsonl").read_text() == "{}\n"


def test_growing_files_are_copied_back(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir()
    source = LocalFiles(there)
    follow_files(source, here)  # at this time no file exists
    assert fetch_all(source, here) == []
    there.mkdir()
    monkeypatch.setattr(download, "PAUSE", 0)
    for text in ("one\n", "one\ntw", "one\ntwo\nthree\n"):
        (there / "history.jsonl").write_text(text)
        (there / "nodes.json").write_text(text)
        follow_files(source, here)
        assert (here / "history.jsonl").read_text() == text
        assert (here / "nodes.json").read_text() == text
    (there / "nodes.json").unlink()
    (here / "nodes.json").unlink()
    (there / "history.jsonl").write_text("one\ntwo\nthree\nfour\n")
    (there / "result.json").write_text("{}")
    (there / "model.safetensors.part").write_text("half")
    (here / "result.json").write_text("an older one, and a longer one")
    assert sorted(fetch_all(source, here)) == ["history.jsonl", "result.json"]
    assert {each.name: each.read_text() for each in here.iterdir()} == {
        "history.jsonl": "one\ntwo\nthree\nfour\n",
        "result.json": "{}",
    }


class Server:
    """A fake SuperLink whose runs end, one after another, as `endings` says."""

    def __init__(self, folder, endings, under_way):
        self.folder, self.endings = folder, iter(endings)
        self.address, self.bundles, self.started = "server:1", True, []
        self.under_way = under_way

    def control(self, repeated=None):
        return self

    def close(self):
        pass

    def ListRuns(self, request):
        values = user_config_to_proto({"output": "run"})
        run = Run(override_config=values, status=RunStatus(status="running"))
        return ListRunsResponse(run_dict={1: run} if self.under_way else {})

    def StartRun(self, request):
        self.started.append(user_config_from_proto(request.override_config)["resume"])
        return StartRunResponse(run_id=2)

    def follow(self, control, run_id, log, look):
        result = {"ended": next(self.endings)}
        (self.folder / "result.json").write_text(json.dumps(result))
        (self.folder / "checkpoint").write_text("state")
        return RunStatus(status="finished", sub_status="completed")


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """Return a function that resumes a run at a fake server; it returns the server's starts."""

    def resume(*endings, under_way):
        there, here = tmp_path / "there", tmp_path / "here"
        for folder in (there, here):
            folder.mkdir(exist_ok=True)
        (here / PLACE).write_text('{"output": "run"}')
        server = Server(there, endings, under_way)
        monkeypatch.setattr(superlink, "Superlink", lambda *_: server)
        monkeypatch.setattr(superlink, "source_of", lambda *_: LocalFiles(there))
        monkeypatch.setattr(superlink, "follow", server.follow)
        monkeypatch.setattr(superlink, "bundle", lambda *_: Fab("", b"", {}))
        monkeypatch.setattr(superlink, "wait_for_nodes", lambda *_, **__: None)
        job = Job(Path(), {"resume": True}, 2, here)
        superlink.run_on_superlink(job, address=server.address)
        return server.started

    return resume


@pytest.mark.parametrize(
    ("endings", "under_way", "starts"),
    [
        (["finished"], True, 0),
        (["finished"], False, 1),
        (["interrupted", "finished"], True, 1),  # the followed run was stopped at the server
    ],
)
def test_a_resumed_run_is_followed_or_started_until_it_has_finished(
    endings, under_way, starts, resumed
):
    assert len(resumed(*endings, under_way=under_way)) == starts


def test_a_run_that_a_signal_stops_at_the_server_has_not_finished(resumed):
    with pytest.raises(EngineError, match=r"stopped the run at the server .* resumes the run"):
        resumed("interrupted", under_way=False)
