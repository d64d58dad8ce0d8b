"""A round ends when enough nodes have replied (its quorum) or at its time-out.

A late reply belongs to no round.
"""

import gc
from itertools import count
from weakref import WeakValueDictionary

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.constants import DEFAULT_TTL
from flwr.clientapp import ClientApp

from edgewire.conf.network import Network
from edgewire.simulation.clock import VirtualClock
from edgewire.strategy.collector import RoundCollector, RoundCollectorState
from edgewire.strategy.ordered_grid import OrderedGrid
from tests.grids import grid_of

NODES = 5
# Weak references by (node, round); they show which replies are still in memory.
answers_kept = WeakValueDictionary()
SLOW = Network(seconds_per_step=1.0)  # node n replies after n seconds
app = ClientApp()


@app.train()
def echo(message, context):
    """Reply with the round's number; node n takes n steps."""
    config = message.content["config"]
    node = context.node_id
    if node in config.get("broken", []):
        raise RuntimeError("no power")
    metrics = {"round": config["round"], "num-steps": node}
    answer = Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
    answers_kept[node, config["round"]] = answer
    return answer


def exchange_over(network=SLOW, nodes=NODES, seed=0, state=None):
    grid = OrderedGrid(grid_of(app, nodes, clock=VirtualClock(network, seed)))
    return RoundCollector(grid, state), grid


def messages(number, nodes=range(1, NODES + 1), **config):
    content = RecordDict({"config": ConfigRecord({"round": number, **config})})
    return [Message(content, node, "train") for node in nodes]


def rounds_of(answers):
    return {node: reply.content["metrics"]["round"] for node, reply in answers.items()}


@pytest.mark.parametrize("quorum", range(1, NODES + 1))
def test_a_quorum_ends_the_round(quorum):
    exchange, grid = exchange_over()
    answers = exchange(messages(1), quorum, 1e9)
    assert rounds_of(answers) == dict.fromkeys(range(1, quorum + 1), 1)
    assert all(reply.metadata.src_node_id == node for node, reply in answers.items())
    assert grid.now == quorum
    assert exchange([], 0, 1e9) == {}
    assert grid.now == quorum


def test_replies_of_the_same_moment_all_count():
    exchange, grid = exchange_over(Network(latency_ms=500))
    assert len(exchange(messages(1), 2, 1e9)) == NODES
    assert grid.now == 1.0


def expect_none_left(late, grid):
    late.clear(grid)
    assert not late.messages
    gc.collect()
    assert not answers_kept  # all replies were fetched and dropped


@pytest.mark.parametrize("quorum", [1, 3, NODES])
def test_the_time_out_starts_anew_in_every_round(quorum):
    exchange, grid = exchange_over()
    first = exchange(messages(1), quorum, 2.5)
    assert list(first) == list(range(1, min(quorum, 2) + 1))
    before = grid.now
    assert before == min(quorum, 2.5)
    exchange(messages(2, nodes=[NODES]), 1, 0.25)
    assert grid.now == before + 0.25


def test_an_old_reply_of_a_late_node_never_counts():
    exchange, grid = exchange_over(state=(state := RoundCollectorState()))
    slow = []
    for number in range(1, 30):
        answers = exchange(messages(number, nodes=[1, 2, 5]), 2, 1e9)
        assert set(rounds_of(answers).values()) == {number}
        slow += [number] * (5 in answers)
    assert not slow
    assert grid.now == pytest.approx(2 * 29)
    answers = exchange(messages(30, nodes=[5]), 1, 1e9)  # the node works through all its messages
    assert rounds_of(answers) == {5: 30}
    del answers
    expect_none_left(state.late, grid)


def test_errors_are_replies_but_do_not_count_towards_a_quorum():
    exchange, grid = exchange_over(Network(latency_ms=500, seconds_per_step=1.0))
    answers = exchange(messages(1, broken=[3, 5]), 2, 1e9)
    assert set(answers) == {1, 2, 3, 5}  # a node that raises an error takes no steps
    assert [n for n, reply in answers.items() if reply.has_error()] == [3, 5]
    assert grid.now == 3.0
    answers = exchange(messages(2, broken=[1, 2, 3, 4, 5]), 2, 1e9)
    assert set(answers) == set(range(1, NODES + 1))
    assert all(reply.has_error() for reply in answers.values())


def test_without_a_reply_the_time_out_passes():
    exchange, grid = exchange_over(Network(loss=1 - 1e-12))
    assert exchange(messages(1), 1, 7.0) == {}
    assert grid.now == 7.0


def test_a_late_node_is_asked_less_and_less_often():
    exchange, _ = exchange_over()
    asked = []
    for number in range(1, 13):
        nodes = [node for node in (1, 5) if node not in exchange.resting()]
        asked += [number] * (5 in nodes)
        exchange(messages(number, nodes=nodes), 2, 1.0)
        assert exchange.time_was_up == (5 in nodes)
    assert asked == [1, 2, 4, 7, 11]


def test_a_reply_in_time_resets_the_misses():
    exchange, _ = exchange_over()
    exchange(messages(1, nodes=[1, 2]), 1, 1e9)
    exchange(messages(2, nodes=[1, 2]), 1, 1e9)
    assert exchange.resting() == {2}
    assert not exchange.time_was_up
    exchange(messages(3, nodes=[1]), 1, 1e9)
    assert exchange.resting() == set()
    assert 2 in exchange(messages(4, nodes=[1, 2]), 2, 1e9)
    exchange(messages(5, nodes=[1, 2]), 1, 1e9)
    assert exchange.resting() == set()


class Remote:
    """A fake grid in real time: the nodes in `failed` reply with errors, the others are silent."""

    def __init__(self, failed):
        self.ids, self.failed, self.sent = count(1), failed, {}

    def push_messages(self, messages):
        new = {str(next(self.ids)): message for message in messages}
        for message_id, message in new.items():
            message.metadata.__dict__["_message_id"] = message_id
        self.sent |= new
        return list(new)

    def pull_messages(self, ids):
        due = [self.sent.pop(i) for i in ids if self.sent[i].metadata.dst_node_id in self.failed]
        return [Message(Error(0, "no power"), reply_to=message) for message in due]


@pytest.mark.parametrize("timeout", [0.5, 60.0, DEFAULT_TTL, 1e9])
def test_a_messages_ttl_is_its_time_out(timeout, naps):
    sent = messages(1)
    RoundCollector(OrderedGrid(Remote(failed=range(1, NODES + 1))))(sent, NODES, timeout)
    assert [m.metadata.ttl for m in sent] == [min(timeout, DEFAULT_TTL)] * NODES


def test_the_time_out_ends_a_round_in_real_time(naps):
    remote, state = Remote(failed=[1]), RoundCollectorState()
    exchange = RoundCollector(grid := OrderedGrid(remote), state)
    for number in range(1, 4):
        assert list(exchange(messages(number, nodes=[1, 2]), 1, 3.0)) == [1]
        assert sum(naps) == pytest.approx(3.0 * number)
        assert len(state.late.messages) == number
    remote.failed = [2]  # all late replies of node 2 arrive now
    assert list(exchange(messages(4, nodes=[1, 2]), 1, 3.0)) == [2]
    state.late.clear(grid)
    assert len(state.late.messages) == 1
    assert len(remote.sent) == 1
