"""/metrics and /healthz: valid whatever nodes are called, and silent unless there is a fault."""

import asyncio
import json
import re
import shutil
import subprocess
import time
import zlib
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
import yaml
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from edgewire.deploy.certificates import make_ca, make_server
from edgewire.deploy.monitoring import metrics
from edgewire.deploy.monitoring.metrics import Monitor, labels
from edgewire.deploy.monitoring.node_states import FleetStates
from edgewire.deploy.server.certificate_file import RENEW
from tests.deploy.served import FakeNode, Server
from tests.runs import ROOT

FOLDER = ROOT / "edgewire" / "deploy" / "monitoring"
HOSTILE = ['a"b', "a\\", "a\nb", "\x1b[31m", "\ud800", "\u202e", "", "x" * 500, 'a",z="b', "é"]
STAMP = "2026-11-29T22:00:00+00:00"


def told(**fields):
    """Return telemetry as a node sends it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(json.dumps(fields).encode()) + packer.flush()


def values(text):
    """Return the samples of an exposition: (name, labels) -> value; each of them occurs once."""
    found = [
        ((each.name, tuple(sorted(each.labels.items()))), each.value)
        for family in text_string_to_metric_families(text)
        for each in family.samples
    ]
    assert max(Counter(key for key, _ in found).values()) == 1
    return dict(found)


class State:
    """A SuperLink's state with nodes and runs."""

    def __init__(self, names=(), runs=()):
        self.nodes = [NodeInfo(node_id=n, status="online") for n in range(1, len(names) + 1)]
        for node, name in zip(self.nodes, names, strict=True):
            node.name = name.encode(errors="replace").decode()  # protobuf's texts are UTF-8
        self.runs = list(runs)

    def get_node_info(self):
        return self.nodes

    def get_run_info(self, statuses):
        assert "finished" not in statuses
        return self.runs


class World:
    """A monitor with a state, and a clock that a test moves."""

    def __init__(self, folder, monkeypatch, state=None, certificate=None):
        self.now, self.states, self.state = 1000.0, FleetStates(), state or State()
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now + 5000)
        monkeypatch.setattr(metrics, "time", clock)
        self.monitor = Monitor(self.app, folder, certificate, self.states)

    async def app(self, scope, receive, send):
        self.now += scope["seconds"]

    def polls(self):
        self.request("/v1/runtime/acquire-task")

    def request(self, path, seconds=0.0):
        asyncio.run(self.monitor({"type": "http", "path": path, "seconds": seconds}, None, None))

    def get(self, path):
        sent = []

        async def send(message):
            sent.append(message)

        factory = SimpleNamespace(state=lambda: self.state)
        app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory))
        scope = {"type": "http", "method": "GET", "path": path, "app": app}
        asyncio.run(self.monitor(scope, None, send))
        return sent[0]["status"], sent[1]["body"].decode()

    def samples(self):
        return values(self.get("/metrics")[1])


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


@given(st.text(max_size=80))
@example("\\")
@example('"\n')
def test_a_label_is_read_as_it_was_and_stays_in_its_place(text):
    shown = "".join(c if c.isprintable() else "?" for c in text[:64])
    assert values(f"a{labels(x=text, y='z')} 1.0\n") == {("a", (("x", shown), ("y", "z"))): 1.0}


def test_metrics_are_valid_whatever_nodes_and_runs_are_called(tmp_path, monkeypatch):
    state = State(HOSTILE * 2)
    state.runs = [
        SimpleNamespace(run_id=n, override_config={"output": name}, bytes_sent=0, bytes_recv=0)
        for n, name in enumerate(["..", "a/../../etc", *HOSTILE])
    ]
    world = World(tmp_path, monkeypatch, state)
    for number in range(1, 5):
        world.states.pulled(number, STAMP, told(error=HOSTILE[number], flower='1"', python="3.14"))
    status, text = world.get("/metrics")
    assert status == 200
    found = values(text)
    assert ("edgewire_node_online", (("node", 'a"b'),)) in found
    assert ("edgewire_node_online", (("node", "?[31m"),)) in found
    assert found["edgewire_nodes", (("state", "online"),)] == 2 * len(HOSTILE)
    if promtool := shutil.which("promtool"):
        words = [promtool, "check", "metrics"]
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_rules_and_dashboard_use_exported_metrics_alone_and_every_metric_of_a_fault(
    tmp_path, monkeypatch
):
    make_ca(tmp_path)
    make_server(tmp_path, ["127.0.0.1"])
    state = State(["kitchen"])
    state.nodes[0].online_until = 1.0
    state.runs = [SimpleNamespace(run_id=1, override_config={}, bytes_sent=0, bytes_recv=0)]
    world = World(tmp_path, monkeypatch, state, tmp_path / "server.crt")
    world.states.pulled(1, STAMP, told(free_disk=1, temperature=2, undervoltage=False))
    exported = {name for name, _ in world.samples()}
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    in_rules = set(re.findall(r"edgewire_\w+", " ".join(each["expr"] for each in rules)))
    in_panels = set(re.findall(r"edgewire_\w+", (FOLDER / "dashboard.json").read_text()))
    assert in_rules <= exported
    assert in_panels <= exported
    assert exported == in_rules | in_panels  # nothing is exported that nobody sees
    docs = (ROOT / "docs" / "deploy.md").read_text()
    assert {each["alert"] for each in rules} == set(re.findall(r"^\| `([A-Z]\w+)` \|", docs, re.M))


def test_above_2000_nodes_single_ones_have_no_metrics(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, State([f"n{n}" for n in range(metrics.MOST_NODES)]))
    names = Counter(name for name, _ in world.samples())
    assert names["edgewire_node_online"] == metrics.MOST_NODES
    world.state.nodes.append(NodeInfo(node_id=9999, status="offline"))
    names = Counter(name for name, _ in world.samples())
    assert not any(name.startswith("edgewire_node_") for name in names)
    assert names["edgewire_nodes"] == 2


def test_the_server_is_healthy_unless_there_is_a_fault(world, tmp_path, monkeypatch):
    make_ca(tmp_path)
    make_server(tmp_path, ["127.0.0.1"])
    world.monitor = Monitor(world.app, tmp_path, tmp_path / "server.crt", world.states)
    certificate, healthy = (tmp_path / "server.crt").read_bytes(), (200, "ok\n")

    def lags(*seconds):
        world.monitor.lags.extend((world.now, each) for each in seconds)

    assert world.get("/healthz") == healthy
    lags(4.9, 0.1)
    assert world.get("/healthz") == healthy
    lags(5.1)
    assert "503 the event loop lags by 5.1 s" in "{} {}".format(*world.get("/healthz"))
    assert world.samples()["edgewire_healthy", ()] == 0
    world.monitor.lags.clear()
    lags(1.1, 1.2)
    assert "lags by 1.2 s" in world.get("/healthz")[1]
    lags(0.9)
    assert world.get("/healthz") == healthy
    assert world.samples()["edgewire_healthy", ()] == 1
    world.now += 10.5
    assert world.get("/healthz")[1].startswith("no SuperExec has asked for runs for 10 s: ")
    world.polls()
    assert world.get("/healthz") == healthy
    usage = SimpleNamespace(free=99e6, total=1e9)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        assert world.get("/healthz") == (
            503,
            f"the disk of {tmp_path} has 99 MB left: make space\n",
        )
    for content, offset in ((certificate, 3e9), (b"no certificate", 0)):
        (tmp_path / "server.crt").write_bytes(content)
        monkeypatch.setattr(metrics.time, "time", lambda offset=offset: time.time() + offset)
        status, line = world.get("/healthz")
        assert status == 503
        assert line == f"{tmp_path}/server.crt has ended, or cannot be read: {RENEW}\n"


def test_the_lag_is_the_longest_stop_of_the_loop_which_tells_systemd_that_it_goes_on(
    tmp_path, notified
):
    async def app(scope, receive, send):
        await asyncio.sleep(0.1)
        time.sleep(metrics.TICK + 0.3)
        await asyncio.sleep(0.1)

    monitor = Monitor(app, tmp_path, None, FleetStates())
    asyncio.run(monitor({"type": "lifespan"}, None, None))
    assert max(lag for _, lag in monitor.lags) > 0.2
    assert notified() == ["WATCHDOG=1"]


def test_requests_are_counted_by_their_duration_without_those_that_wait(world):
    for path, seconds in [("/v1/fleet/a", 0.01), ("/v1/control/b", 3), ("/v1/fleet/pull", 40)]:
        world.request(path, seconds)
    found = {key: value for key, value in world.samples().items() if "request" in key[0]}
    le = {dict(key[1])["le"]: value for key, value in found.items() if key[1]}
    assert le == {"0.005": 0, "0.02": 1, "0.1": 1, "0.5": 1, "2": 1, "10": 2, "60": 2, "+Inf": 2}
    assert found["edgewire_request_seconds_count", ()] == 2
    assert found["edgewire_request_seconds_sum", ()] == pytest.approx(3.01)


def test_a_run_shows_its_round_and_when_its_last_message_came(world, tmp_path):
    run = SimpleNamespace(run_id=7, override_config={"output": "one"}, bytes_sent=0, bytes_recv=0)
    world.state.runs = [run]
    moved = "edgewire_run_last_progress_timestamp_seconds", (("run", "one"),)
    last = "edgewire_run_round", (("run", "one"),)

    def shown():
        found = world.samples()
        return found[last], found[moved] - 5000

    assert shown() == (0, 1000)
    world.now = 2000.0
    assert shown() == (0, 1000)
    run.bytes_recv += 1
    (tmp_path / "one").mkdir()
    rows = "".join(json.dumps({"round": n, "more": "x" * 9999}) + "\n" for n in range(12))
    (tmp_path / "one" / "history.jsonl").write_text(rows + '{"round": 99, "unfinis')
    assert shown() == (11, 2000)
    (tmp_path / "one" / "history.jsonl").write_text("[]\nno JSON\n")
    world.now = 2500.0
    assert shown() == (0, 2000)


def test_a_node_that_is_silent_since_before_the_start_is_silent_since_then(world):
    world.state.nodes = [
        NodeInfo(node_id=1, name="a", status="offline"),
        NodeInfo(node_id=2, name="b", status="registered"),
    ]
    seen = {key[1]: value for key, value in world.samples().items() if "last_seen" in key[0]}
    assert seen == {(("node", "a"),): 6000.0}


def test_a_real_server_tells_what_its_node_and_its_run_do(tmp_path):
    with Server(output=tmp_path) as server, httpx.Client(trust_env=False) as http:

        def get(path):
            return http.get(f"http://{server.address}{path}")

        node = FakeNode(server.address)
        node.message()
        run = server.begin_run().run.run_id
        found = values(get("/metrics").text)
        (name,) = {dict(key[1])["node"] for key in found if key[0] == "edgewire_node_online"}
        assert name == str(node.node.node_id)
        assert found["edgewire_node_uplink_bytes_total", (("node", name),)] > 0
        assert abs(found["edgewire_node_clock_offset_seconds", (("node", name),)]) < 5
        assert abs(found["edgewire_run_last_progress_timestamp_seconds", (("run", str(run)),)]
                   - time.time()) < 5  # fmt: skip
        assert found["edgewire_nodes", (("state", "online"),)] == 1
        assert get("/metrics").headers["content-type"] == metrics.FORMAT
        assert get("/healthz").text == "ok\n"
