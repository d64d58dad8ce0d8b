"""Every gradient counts exactly once, even if replies are lost, late or repeated."""

import copy

import numpy as np
import pytest

from edgewire.conf.network import Network
from tests.applied import CODECS, expect_nothing_lost, record_applied
from tests.strategy.federation import AVERAGE, LAYOUT, MOMENTUM, NODES, Federation, Trainer

ROUNDS = 25
LOSSY = Network(latency_ms=100.0, loss=0.25)
SLOW = Network(latency_ms=10.0, seconds_per_step=0.2)


@pytest.fixture
def applied(monkeypatch):
    return record_applied(monkeypatch)


def assert_nothing_is_lost(federation, applied):
    assert len(applied.seen) == len(set(applied.seen))
    for node in range(1, NODES + 1):
        made = [g for (n, _), g in federation.trainer.given.items() if n == node]
        given, state = np.sum(made, axis=0, dtype=np.float64), federation.state(node)
        expect_nothing_lost(federation.codec, state, applied, node, LAYOUT, given)


@pytest.mark.few(7)
@pytest.mark.parametrize("downlink", [None, AVERAGE], ids=["full", "average"])
@pytest.mark.parametrize("name", CODECS)
def test_sent_plus_kept_equals_given_whatever_is_lost(name, downlink, applied):
    federation = Federation(Trainer(**CODECS[name]), LOSSY, seed=5)
    strategy = federation.run(ROUNDS, timeout=1.0, downlink=downlink, verify_every=1)
    assert len(applied.seen) == strategy.traffic.client_updates
    assert strategy.traffic.failures == len(federation.trainer.given) - len(applied.seen) > 10
    assert_nothing_is_lost(federation, applied)


@pytest.mark.parametrize("name", ["topk", "esgd", "sign"])
def test_sent_plus_kept_equals_given_however_late(name, applied):
    trainer = Trainer(steps=lambda node, number: 1 + (3 * node + number) % 4, **CODECS[name])
    federation = Federation(trainer, SLOW)
    federation.run(ROUNDS, quorum=0.5, seed=1)
    assert ROUNDS * NODES - len(applied.seen) > 10
    assert {node for node, _ in applied.seen} == set(range(1, NODES + 1))
    assert_nothing_is_lost(federation, applied)


@pytest.mark.parametrize("downlink", [None, AVERAGE], ids=["full", "average"])
def test_a_repeated_reply_is_refused(downlink, applied):
    old = {}

    def reply(key, answer):
        node, number = key
        if number % 4 == 3 and node == 2:
            answer.content = copy.deepcopy(old[node])
        old[node] = copy.deepcopy(answer.content)
        return answer

    federation = Federation(Trainer(**CODECS["topk"]), reply=reply)
    strategy = federation.run(ROUNDS, downlink=downlink, verify_every=1)
    again = len([n for n in range(1, ROUNDS + 1) if n % 4 == 3])
    assert strategy.traffic.failures == again
    assert len(applied.seen) == ROUNDS * NODES - again
    assert_nothing_is_lost(federation, applied)


def test_without_losses_nothing_is_put_back(monkeypatch):
    federation = Federation(Trainer(**CODECS["topk"]))
    monkeypatch.setattr(type(federation.codec), "restore", None)  # a call would raise
    assert federation.run(5).traffic.failures == 0


@pytest.mark.parametrize("name", ["topk", "esgd"])
def test_a_node_that_lost_its_state_takes_part_again(name):
    federation = Federation(Trainer(optimizer=MOMENTUM, **CODECS[name]))

    def forget(server_round):
        if server_round == 3:
            federation.records(2).clear()

    strategy = federation.run(7, after=forget, verify_every=1)
    assert strategy.traffic.failures == 1  # the server notices the lost state after one round
    assert "model" in federation.seen[2, 5]
    assert federation.trainer.models[2, 7].tobytes() == federation.models[6].tobytes()


@pytest.mark.parametrize("name", ["dense", "topk"])
def test_nodes_catch_up_after_losses(name):
    compression = CODECS.get(name, {})
    federation = Federation(Trainer(optimizer=MOMENTUM, **compression), LOSSY, seed=2)
    federation.run(ROUNDS, timeout=1.0, verify_every=1)
    assert len(federation.trainer.models) == len(federation.seen)  # no node lacked the model
    for (_, server_round), model in federation.trainer.models.items():
        assert model.tobytes() == federation.models[server_round - 1].tobytes()
    missed = {key: arrays for key, arrays in federation.seen.items() if len(arrays) > 2}
    assert missed
