"""The file `nodes.json`: what each node has done."""

import json
import math
from types import SimpleNamespace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from edgewire.compression.flower.server.failure_policy import FailedNode
from edgewire.strategy.run import node_log
from edgewire.strategy.run.node_log import NodeLog
from tests.local_runs import local_run
from tests.runs import nodes_of, result_of

RUNS = {
    "flower": ["algorithm=fedavg_f2i_both", "strategy.fraction_evaluate=1", "dataset.holdout=0.2"],
    "links": ["algorithm=fedavg", "network=mixed"],
    "rounds": ["algorithm=edgewire", "network=mixed"],
    "asynchronous": ["algorithm=edgewire_async", "strategy.pushes=60", "eval_every=20"],
    "cut": ["algorithm=synthetic_gradients"],
    "lost": ["algorithm=edgewire", "network.loss=0.3", "timeout=5"],
}


def content(**metrics):
    return RecordDict({"metrics": MetricRecord(metrics)})


class Clocked:
    """A grid in real time whose replies a test makes."""

    virtual_seconds = next_change = None
    comparison = {}  # noqa: RUF012
    now = 100.0

    def __init__(self):
        self.waiting = {}

    def get_node_ids(self):
        return [11, 12]

    def push_messages(self, messages, ttl=math.inf):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.waiting))
            ids.append(str(len(self.waiting)))
            self.waiting[ids[-1]] = message
        return ids

    def pull_before(self, ids, deadline):
        self.now += 2.5
        return [self.reply(self.waiting[each]) for each in ids]

    def reply(self, message):
        return Message(self.said(message), reply_to=message)

    def said(self, message):
        return content(**{"loss": 0.25, "num-examples": 7})

    def get_nodes(self):
        return [SimpleNamespace(node_id=11, name="kitchen"), SimpleNamespace(node_id=12, name="")]

    tend = follow = set_run = create_message = drop_replies = None
    pull_messages = send_and_receive = run = None


def observed(tmp_path, grid):
    log = NodeLog(grid, str(tmp_path), "accuracy")
    log.get_node_ids()
    sent = RecordDict({"config": ConfigRecord({"lr": 0.1})})
    ids = list(log.push_messages([Message(sent, node, "train") for node in (12, 11, 12)]))
    return log, ids


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RUNS)
def test_the_nodes_bytes_add_up_to_the_runs(name, tmp_path):
    local_run(tmp_path, *RUNS[name], "nodes=5", "rounds=4")
    result, found = result_of(tmp_path), nodes_of(tmp_path)
    nodes = found["nodes"]
    for way in ("uplink", "downlink"):
        parts = sum(result[f"{way}_{kind}bytes"] for kind in ("", "other_", "header_"))
        assert sum(node[f"{way}_bytes"] for node in nodes) == parts
        assert result[f"{way}_index_bytes"] + result[f"{way}_value_bytes"] < result[f"{way}_bytes"]
    assert found["round"] == result["round"]
    assert [node["partition"] for node in nodes] == list(range(len(nodes)))
    assert all(node["lag"] is None or 0 <= node["lag"] <= found["seconds"] for node in nodes)
    assert (nodes[0]["accuracy"] is not None) == (name == "flower")
    if "network=mixed" in RUNS[name]:
        assert len({round(node["lag"], 3) for node in nodes if node["lag"]}) > 1


def test_lags_failures_and_unanswered_messages(tmp_path):
    log, ids = observed(tmp_path, Clocked())
    log.pull_before(ids[:2], math.inf)
    log.write(3, {11: FailedNode(2, "<b>no</b>")})
    found = json.loads((tmp_path / node_log.FILE).read_text())
    first, second = found["nodes"]
    assert (first["node"], second["node"]) == (11, 12)  # in the order of the grid's list
    assert first["lag"] == second["lag"] == 2.5
    assert (first["waiting"], second["waiting"]) == (False, True)
    assert (first["failures"], first["reason"]) == (2, "<b>no</b>")
    assert (second["messages"], second["replies"]) == (2, 1)
    assert first["train_loss"] == 0.25
    assert first["samples"] == 7


@pytest.mark.parametrize(
    "said",
    [
        content(loss=math.nan, **{"num-examples": math.inf}),
        content(loss=[1.0, 2.0]),
        content(),
        RecordDict({"loss": ConfigRecord({"loss": "0.5"})}),
        RecordDict({"arrays": ArrayRecord({"a": Array("float32", (9,), "x", b"1")})}),
    ],
)
def test_hostile_metrics_leave_a_file_that_can_be_read(said, tmp_path):
    grid = Clocked()
    grid.said = lambda message: said
    log, ids = observed(tmp_path, grid)
    log.pull_before(ids, math.inf)
    log.write(1, {})
    found = json.loads((tmp_path / node_log.FILE).read_text(), parse_constant=pytest.fail)
    assert all(node["train_loss"] is None and node["samples"] is None for node in found["nodes"])


def test_the_file_is_written_seldom_and_at_the_end(tmp_path):
    log, _ = observed(tmp_path, Clocked())
    for number in (1, 2):
        log.write(number, {})
    assert nodes_of(tmp_path)["round"] == 1
    log.write(3, {}, end=True)
    assert nodes_of(tmp_path)["round"] == 3


def test_lost_messages_before_the_last_answered_one_do_not_wait(tmp_path):
    grid = Clocked()
    log, ids = observed(tmp_path, grid)
    log.pull_before(ids[1:2], math.inf)  # node 12 answers neither of its two messages
    (later,) = log.push_messages([Message(content(), 12, "train")])
    log.write(1, {})
    assert [node["waiting"] for node in nodes_of(tmp_path)["nodes"]] == [False, True]
    log.pull_before([later], math.inf)
    log.write(2, {}, end=True)
    assert [node["waiting"] for node in nodes_of(tmp_path)["nodes"]] == [False, False]


def test_a_resumed_run_counts_on(tmp_path):
    grid = Clocked()
    log, ids = observed(tmp_path, grid)
    log.pull_before(ids, math.inf)
    state, later = log.save(), Clocked()
    later.now = 7.0  # another process, with another clock
    again = NodeLog(later, str(tmp_path), "accuracy")
    again.load(state)
    again.push_messages([Message(content(), 11, "train")])
    again.write(4, {})
    (node, _) = nodes_of(tmp_path)["nodes"]
    assert (node["messages"], node["sent"]) == (2, 2.5)
    again.get_node_ids()
    again.write(5, {}, end=True)
    assert [each["name"] for each in nodes_of(tmp_path)["nodes"]] == ["kitchen", None]


def test_many_nodes_are_listed_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(node_log, "LISTED", 1)
    log, _ = observed(tmp_path, Clocked())
    log.write(1, {})
    assert nodes_of(tmp_path)["others"] == 1
    assert len(nodes_of(tmp_path)["nodes"]) == 1
