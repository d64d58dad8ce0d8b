"""In sparse averaging the server takes the mean of usable updates; all nodes take the same step."""

import numpy as np
import pytest
from flwr.app import ArrayRecord

from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.make import make_codec
from edgewire.conf.network import Network
from edgewire.simulation.clock import VirtualClock
from edgewire.strategy.synchronous import Participation, SparseAveraging
from tests.strategy.federation import (
    ADAM,
    AVERAGE,
    MOMENTUM,
    NODES,
    SGD,
    TRAINED,
    Federation,
    Trainer,
    always,
    assert_models,
    breaks,
    by_hand,
    initial,
    start,
)

ALL = list(range(1, NODES + 1))
DOWNLINKS = {
    "full": None,
    "average": AVERAGE,
    "int8": make_codec(quantizer="int8"),
    "topk": make_codec("topk", density=0.1),
    "sign": make_codec(quantizer="sign"),
    "qsgd": make_codec(quantizer="qsgd"),
}


@pytest.mark.parametrize("downlink", ["full", "average"])
@pytest.mark.parametrize("update", ["gradient", "delta"])
def test_sending_every_entry_is_sgd(downlink, update):
    federation = Federation(Trainer(update))
    strategy = federation.run(6, downlink=DOWNLINKS[downlink], server_lr=0.5, lr=0.5)
    if update == "gradient":
        assert_models(federation, by_hand([ALL] * 6))
    else:  # model - (model - gradient) is rounded
        expected = by_hand([ALL] * 6, share=0.5)[-1]
        np.testing.assert_allclose(federation.models[-1], expected, atol=1e-5)
    assert strategy.traffic.client_updates == 6 * NODES
    assert strategy.traffic.failures == 0


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
def test_exact_differences_are_exact_steps(optimizer):
    steps, differences = (Federation(Trainer(optimizer=optimizer)) for _ in range(2))
    steps.run(6)
    differences.run(6, follow="differences")
    assert_models(differences, steps.models)
    assert {**differences.trainer.models}.keys() == {**steps.trainer.models}.keys()
    for key, model in steps.trainer.models.items():
        np.testing.assert_array_equal(differences.trainer.models[key], model)


def test_differences_bring_seldom_nodes_to_the_server_s_model():
    still = always(lambda made: 0 * made, range(4, 41))
    federation = Federation(Trainer(spoil=still, seeded=start()))
    options = {"fraction_train": 0.25, "downlink": DOWNLINKS["topk"], "follow": "differences"}
    strategy = federation.run(40, **options)
    assert strategy.traffic.failures == 0
    model = federation.models[-1]
    for node in {node for node, _ in federation.seen}:
        distance = [
            np.abs(given - model).sum()
            for (who, number), given in sorted(federation.trainer.models.items())
            if who == node and number > 4
        ]
        assert distance == sorted(distance, reverse=True)  # each message corrects what is left
        assert distance[-1] < 0.5 * distance[0]
    lost = Federation(Trainer(spoil=still, seeded=start()))
    assert (
        strategy.traffic.downlink_bytes
        < lost.run(40, **options | {"follow": "steps"}).traffic.downlink_bytes
    )


def test_all_weights_are_the_whole_model():
    """FLASC at density 1 is a run without a downlink, for nodes that miss rounds too."""
    whole = make_codec(sparsifier="topk", density=1.0, quantizer="float32")
    options = {"fraction_train": 0.5, "timeout": 1.0}
    one, other = Federation(Trainer()), Federation(Trainer())
    one.run(9, downlink=whole, follow="weights", **options)
    other.run(9, downlink=None, **options)
    assert_models(one, other.models)
    for key, model in other.trainer.models.items():
        np.testing.assert_array_equal(one.trainer.models[key], model)


def test_nodes_get_the_largest_weights_of_the_newest_model():
    codec = make_codec(sparsifier="topk", density=0.25, quantizer="float32")
    federation = Federation(Trainer())
    strategy = federation.run(6, downlink=codec, follow="weights", fraction_train=0.5)
    assert strategy.traffic.failures == 0
    for (_, number), given in federation.trainer.models.items():
        model = federation.models[number - 1]
        np.testing.assert_array_equal(given[TRAINED:], model[TRAINED:])  # running statistics
        sent = np.flatnonzero(given[:TRAINED])
        assert len(sent) == round(0.25 * TRAINED)
        np.testing.assert_array_equal(given[sent], model[sent])
        left = np.delete(model[:TRAINED], sent)
        assert np.abs(left).max() <= np.abs(model[sent]).min()
    assert not any(REPLICA in state for state in federation.pool.states().values())


def test_a_deltas_rate_is_the_server_lr():
    one, two = (Federation(Trainer("delta")) for _ in range(2))
    one.run(3, lr=9.0, server_lr=0.25)
    two.run(3, lr=0.01, server_lr=0.25)
    assert_models(one, two.models)
    assert not np.array_equal(one.models[1], by_hand([ALL], lr=9.0)[1])


@pytest.mark.few(12)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=lambda o: o["_target_"][16:])
@pytest.mark.parametrize("downlink", DOWNLINKS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_nodes_follow_bit_by_bit_with_any_downlink(downlink, optimizer, share):
    trainer = Trainer(optimizer=optimizer, sparsifier="topk", density=0.1)
    federation = Federation(trainer)
    strategy = federation.run(
        12, downlink=DOWNLINKS[downlink], verify_every=2, fraction_train=share, seed=3
    )
    assert strategy.traffic.failures == 0
    assert len(trainer.models) == 12 * NODES * share
    for (_, server_round), model in trainer.models.items():
        assert model.tobytes() == federation.models[server_round - 1].tobytes()
    asked = {node for node, _ in trainer.models}
    assert asked == set(ALL)


def test_the_nodes_of_a_round_are_drawn_from_seed_and_round():
    drawn, share = [], 0.5
    for seed in (1, 1, 2):
        federation = Federation(Trainer())
        federation.run(20, fraction_train=share, seed=seed)
        rounds = [sorted(n for n, r in federation.seen if r == number) for number in range(1, 21)]
        assert all(len(nodes) == NODES * share for nodes in rounds)
        assert_models(federation, by_hand(rounds))
        drawn.append(rounds)
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("quorum", "nodes", "need"),
    [(1.0, 5, 5), (0.5, 5, 3), (0.01, 5, 1), (0.55, 20, 11), (0.28, 25, 7), (0.07, 100, 7)],
)
def test_a_quorum_is_a_share_of_the_nodes_asked_rounded_up(quorum, nodes, need):
    assert Participation(quorum=quorum).needed(nodes) == need


def test_nodes_beyond_the_quorum_are_not_waited_for():
    federation = Federation(Trainer(), Network(seconds_per_step=1.0))  # node n takes n seconds
    strategy = federation.run(4, quorum=0.5)
    assert_models(federation, by_hand([[1, 2]] * 4))
    assert federation.grid.virtual_seconds == 8.0
    assert strategy.traffic.client_updates == 8


def test_statistics_must_come_last():
    names = list(initial())
    federation = Federation(Trainer())
    arrays = ArrayRecord({name: initial()[name] for name in reversed(names)})
    with pytest.raises(ValueError, match="after all parameters"):
        SparseAveraging().start(federation.grid, arrays, 1)


def test_the_loss_is_the_mean_over_the_samples_used():
    def reply(key, answer):
        answer.content["metrics"]["loss"] = float(key[0])
        return answer

    federation, losses = Federation(Trainer(spoil={(2, 2): breaks}), reply=reply), []
    strategy = SparseAveraging()
    for rounds in (1, 2):
        strategy.start(federation.grid, initial(), rounds)
        losses.append(strategy.train_metrics["loss"])
    # node n has n samples and the loss n
    assert losses == [(1 + 4 + 9 + 16) / 10, (1 + 9 + 16) / 8]


def test_nodes_that_join_late_are_waited_for():
    network = Network(join_seconds=100.0, seconds_per_step=0.01)
    federation = Federation(Trainer(), network, seed=2)
    strategy = federation.run(5)
    clock = VirtualClock(network, 2)
    first = min(map(clock.joined, range(1, NODES + 1)))
    assert first > 1
    assert first < federation.grid.virtual_seconds < first + 1
    assert strategy.traffic.client_updates == 5  # all from one node


def test_when_all_have_crashed_the_run_ends(caplog):
    network = Network(seconds_per_step=0.01, crash=0.4)
    federation = Federation(Trainer(), network, seed=1)
    strategy = federation.run(200)
    assert 0 < strategy.traffic.client_updates < 60
    assert "no node is left" in caplog.text


def test_a_returning_node_takes_part_again():
    network = Network(seconds_per_step=0.01, crash=0.3, rejoin_seconds=0.5)
    federation = Federation(Trainer(**{"sparsifier": "topk", "density": 0.1}), network, seed=1)
    strategy = federation.run(60, timeout=5.0)
    answered = [r for n, r in federation.seen if n == 2]
    assert len(answered) > 10
    assert max(answered) > 40
    assert strategy.traffic.client_updates > 60
