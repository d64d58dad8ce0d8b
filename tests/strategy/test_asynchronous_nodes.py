"""Nodes of an asynchronous server crash, return, join, reply late, or reply with invalid data."""

import gc
from itertools import pairwise

import numpy as np
import pytest

from edgewire.compression.base import PayloadError
from edgewire.compression.make import make_codec
from edgewire.conf.network import DeviceClass, Network
from edgewire.simulation.clock import VirtualClock
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.staleness import Global
from tests.local_runs import local_run
from tests.strategy.event_loop import CODECS, WAITS, assert_same, at_once, event_loop
from tests.strategy.federation import NODES, Federation, Trainer, always, nan


def test_crashed_nodes_are_not_waited_for():
    network = Network(waiting="uniform", waiting_seconds=1.0, crash=0.05)
    federation = Federation(Trainer(steps=at_once), network, nodes=20, seed=4)
    strategy = federation.push(150, staleness=Global())
    models, trace = event_loop(network, 150, "global", make_codec(), nodes=20, seed=4)
    assert_same(federation, models, trace)
    last = {node: now for now, node, _ in trace}
    assert 2 < sum(now < trace[-1][0] - 4 for now in last.values()) < 18  # some nodes have crashed
    assert strategy.traffic.failures == 0


def test_a_run_ends_when_all_have_crashed(caplog):
    network = Network(waiting="fixed", waiting_seconds=1.0, crash=0.3)
    federation = Federation(Trainer(steps=at_once), network, seed=1)
    # The last model is recorded although fewer updates arrived.
    strategy = federation.push(1000, record_every=500)
    assert len(federation.models) == 2
    assert 0 < strategy.traffic.client_updates < 100
    assert federation.grid.virtual_seconds < 100
    assert f"no node is left after {strategy.traffic.client_updates} of 1000" in caplog.text


def test_a_returning_node_has_lost_its_memory():
    network = Network(waiting="fixed", waiting_seconds=1.0, crash=0.2, rejoin_seconds=5.0)
    trainer, begun = Trainer(steps=at_once, **CODECS["topk"]), []

    def reply(key, answer):
        begun.append((key[1], bool(federation.pool.states())))  # False before the first message
        return answer

    federation = Federation(trainer, network, nodes=1, seed=3, reply=reply)
    federation.push(30)
    _, trace = event_loop(network, 30, "none", make_codec(), nodes=1, seed=3)
    returns = [after[2] for before, after in pairwise(trace) if after[0] - before[0] > 5]
    assert 2 < len(returns) < 15
    assert [number for number, known in begun if not known] == [1, *returns]


def test_nodes_join_when_they_come():
    network = Network(waiting="fixed", waiting_seconds=1.0, join_seconds=10.0)
    federation = Federation(Trainer(steps=at_once), network, nodes=8, seed=2)
    federation.push(80)
    clock, expected = VirtualClock(network, 2), dict.fromkeys(range(1, 9), 0)
    end = federation.grid.virtual_seconds
    for node in expected:
        expected[node] = int(end - clock.joined(node) + 1e-9)
    answered = {n: len([1 for key in federation.seen if key[0] == n]) for n in expected}
    assert all(0 <= answered[n] - expected[n] <= 1 for n in expected)
    assert max(map(clock.joined, expected)) > 3


def test_a_node_that_misses_the_time_out_is_sent_a_new_message(caplog):
    network = Network(waiting="fixed", waiting_seconds=1.0, loss=0.3)
    federation = Federation(Trainer(steps=at_once), network, seed=1)
    strategy = federation.push(60, timeout=2.5)
    assert strategy.traffic.client_updates == 60
    assert strategy.traffic.failures > 5
    assert "no reply in time" in caplog.text
    assert len(federation.seen) >= 60 + strategy.traffic.failures
    assert len(strategy.state.late.messages) <= NODES


@pytest.mark.few(1)
@pytest.mark.parametrize("speed", [0.01, 1e-5])
def test_nodes_that_are_always_late_take_no_memory(speed):
    """Messages to a busy slow node expire: the node ignores them, and the server forgets them."""
    classes = {"fast": DeviceClass(0.5, 1.0), "slow": DeviceClass(0.5, speed)}
    network = Network(waiting="fixed", waiting_seconds=1.0, classes=classes)
    federation = Federation(Trainer(steps=at_once), network, nodes=8, seed=2)
    strategy = federation.push(800, timeout=3.0, record_every=800)
    slow = sum(federation.clock.speed(node) < 1 for node in range(1, 9))
    assert 0 < slow < 8
    end = federation.grid.virtual_seconds
    assert strategy.traffic.failures > 40 * slow
    assert len(federation.seen) <= 800 + 8 + slow * (1 + end * speed)
    gc.collect()
    assert len(federation.answers) <= 8
    busy = 1 / speed / 3  # messages to a slow node while it works on one message
    late = strategy.state.late
    late.clear(OrderedGrid(federation.grid))
    assert len(late.messages) <= slow * (2 * busy + 1)  # and as many again before its next reply


def test_late_replies_are_not_applied_and_nodes_put_them_back():
    """Every third reply is late: the server ignores it; the node keeps its update for later."""
    slow = Network(seconds_per_step=1.0)
    trainer = Trainer(steps=lambda node, number: 4 if number % 3 == 0 else 1, **CODECS["topk"])
    federation = Federation(trainer, slow, seed=1)
    strategy = federation.push(40, timeout=3.0)
    assert strategy.traffic.failures > 5
    assert strategy.traffic.client_updates == 40
    gc.collect()
    assert len(federation.answers) <= NODES
    for node in range(1, NODES + 1):
        answered = [number for n, number in federation.seen if n == node]
        assert answered == list(range(1, len(answered) + 1))


def test_a_time_out_shorter_than_any_reply_ends_the_run():
    federation = Federation(Trainer(steps=at_once), Network(waiting="fixed", waiting_seconds=1.0))
    said = r"20 failures in a row of every node: .* in time \(timeout=0.5\)"
    with pytest.raises(PayloadError, match=said):
        federation.push(60, timeout=0.5)


def test_an_unusable_reply_is_counted_and_its_node_asked_again(caplog):
    spoil = {(2, number): nan for number in (1, 3)}
    federation = Federation(Trainer(steps=at_once, spoil=spoil), WAITS)
    strategy = federation.push(40)
    assert strategy.traffic.failures == 2
    assert strategy.traffic.client_updates == 38
    assert (2, 4) in federation.seen
    assert caplog.text.count("node 2 left out") == 1
    assert np.isfinite(federation.models[-1]).all()


def test_updates_too_large_for_float32_leave_the_model_alone(recwarn):
    def huge(made):
        return np.full_like(made, 3e38)

    spoil = {(2, number): huge for number in range(1, 99)}
    for options in ({}, {"buffer": 3}):
        federation = Federation(Trainer(steps=at_once, spoil=spoil), WAITS)
        strategy = federation.push(60, **options)
        assert strategy.traffic.failures > 2
        assert strategy.traffic.client_updates == 60 - strategy.traffic.failures
        assert np.isfinite(federation.models[-1]).all()
    assert not recwarn


def test_failures_that_are_not_consecutive_do_not_end_a_run():
    every_second = Trainer(steps=at_once, spoil=always(nan, range(2, 99, 2)))
    strategy = Federation(every_second, WAITS).push(200)
    assert strategy.traffic.failures > 80


def test_a_run_without_usable_replies_ends():
    trainer = Trainer(steps=at_once, spoil=always(nan, range(5, 999)))
    federation = Federation(trainer, WAITS)
    with pytest.raises(PayloadError, match=r"20 failures in a row of every node: .*NaN"):
        federation.push(5000)


def test_a_warm_up_counts_the_updates_of_a_node(tmp_path, encoded):
    """Not the server's steps, of which there may be many between two updates of a node."""
    words = ["nodes=4", "strategy.pushes=20", "strategy.buffer=2", "eval_every=20"]
    local_run(tmp_path, "algorithm=edgewire_async", "dataset=digits", *words)
    numbers = [number for number, _ in encoded]
    assert [numbers.count(number) for number in (1, 2, 3)] == [4, 4, 4]
