"""A mean over all nodes equals the mean of what the nodes have, whatever happens to replies."""

import copy
from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from edgewire.client.node import node_of
from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressionMod, update_record
from edgewire.compression.flower.headers import TrainConfig
from edgewire.compression.flower.native_tensors import (
    Initial,
    LocalVectors,
    natives_of,
    with_natives,
)
from edgewire.compression.flower.node.state import store_arrays, stored_arrays, take_up
from edgewire.compression.flower.server.acks import AckTracker
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.conf.check import Codecs
from edgewire.conf.network import Network
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.strategy.aggregation import ReportedTensors
from edgewire.strategy.federated import Federated, FederatedState
from edgewire.strategy.run.serialization import from_bytes
from edgewire.strategy.synchronous import SparseAveraging
from tests.grids import pool_of
from tests.strategy.federation import LAYOUT, NODES, TRAINED, gradient, initial, strategy_of

FATES = ["used", "used", "used", "refused", "fails", "repeated"]
PLAIN, KEEPS = make_codec(), make_codec("topk", density=0.1)


def vectors_of(share=1.0):
    trained = LAYOUT.without([len(LAYOUT) - 1])
    vectors = LocalVectors.of(("c",), trained, make_codec())
    return vectors._replace(nodes=NODES, share=share)


def app_of(codec, share, fates):
    """Return an app with a vector c_i in its state; `fates`: by node and message, from `FATES`."""
    app, natives, old = ClientApp(), Initial({}, vectors=vectors_of(share)), {}
    uplink = CompressionMod(codec, layout=LAYOUT, initial=natives, pending="own")

    def spoil(message, context, call_next):
        node = node_of(context).index
        answer, fate = call_next(message, context), fates(node, number_of(message))
        sent, old[node] = old.get(node), copy.deepcopy(answer.content)
        if fate == "refused":
            answer.content["arrays"] = record = copy.deepcopy(answer.content["arrays"])
            name = next(iter(record))
            record[name] = Array("uint8", (3,), record[name].stype, b"bad")
        elif fate == "repeated" and sent is not None:
            answer.content = sent
        return answer

    def train(message, context):
        node, number = node_of(context).index, number_of(message)
        server = natives_of(message.content["arrays"])["local:c"]
        own = stored_arrays(context.state, "own").get("c", np.zeros(TRAINED, np.float32))
        new = np.random.default_rng([node, number]).normal(size=TRAINED).astype(np.float32)
        store_arrays(context.state, "own", {"c": new})
        if fates(node, number) == "fails":
            raise RuntimeError("no power")
        report = {"local:c": server + np.float32(share) * (new - own)}
        arrays = with_natives(update_record(gradient(node, number)), report)
        metrics = {"loss": 1.0, "num-examples": 10 + node, "num-steps": 1, "seconds": 0.0}
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    app.train(mods=[spoil, uplink])(train)
    app.train("step", mods=[spoil, uplink])(train)
    return app


def number_of(message):
    return TrainConfig.of(message.content["config"]).number


def weights_and_acks(strategy):
    """Return the nodes' weights at the server, and the tracker of their applied replies."""
    if isinstance(strategy, SparseAveraging):
        return strategy.state.reported.known, AckTracker(strategy.state.session.acks)
    state = from_bytes(FederatedState, strategy.save())
    acks = AckTracker(state.grid.session.acks)
    acks.applied(acks.pending)  # no later message does this for the last round
    return state.weights, acks


@pytest.mark.few(1)
@pytest.mark.parametrize("codec", [PLAIN, KEEPS], ids=["plain", "with a residual"])
@pytest.mark.parametrize("kind", ["own", "own, weighted", "flower"])
@given(
    seed=st.integers(0, 1000),
    fraction=st.sampled_from([1.0, 0.5]),
    loss=st.sampled_from([0.0, 0.3]),
    quorum=st.sampled_from([1.0, 0.6]),
)
def test_the_mean_is_that_of_the_nodes_vectors(codec, kind, seed, fraction, loss, quorum):
    def fates(node, number):
        return FATES[int(np.random.default_rng([seed, node, number]).integers(len(FATES)))]

    pool = pool_of(app_of(codec, fraction, fates), NODES)
    network = Network(latency_ms=10.0, loss=loss, waiting="uniform")
    grid, seen = LocalGrid(pool, NODES, VirtualClock(network, seed)), []
    if kind == "flower":
        plain = FedAvg(fraction_train=fraction, fraction_evaluate=0, min_train_nodes=2)
        strategy = Federated(plain, Codecs(codec, seed=seed))
    else:
        weighted = {"weighted_by_key": "num-examples"} if "weighted" in kind else {}
        options = {"fraction_train": fraction, "quorum": quorum, "update": "delta", **weighted}
        codecs = Codecs(codec, None, seed, False)
        strategy = strategy_of(SparseAveraging, codecs=codecs, server_lr=0.5, **options)
    strategy.initial = Initial({}, vectors=vectors_of(fraction))

    def note(done, arrays):
        seen.append(natives_of(arrays)["local:c"].copy())

    with suppress(PayloadError):  # after too many rounds without a usable reply
        strategy.start(grid, initial(), 8, 5.0, ConfigRecord({"lr": 0.1}), evaluate_fn=note)
    weights, acks = weights_and_acks(strategy)
    expected, usual = np.zeros(TRAINED), np.mean([*weights.values()] or [1.0])
    for node, state in pool.states().items():
        take_up(state, "own", acks.last_applied(node))
        own = stored_arrays(state, "own").get("c", np.zeros(TRAINED))
        assert own.any() == (node in weights)
        expected += weights.get(node, usual) * own
    expected /= sum(weights.values()) + (NODES - len(weights)) * usual
    np.testing.assert_allclose(seen[-1], expected, atol=2e-6)


def test_a_whole_round_is_the_plain_mean_bit_for_bit():
    draw, initial = np.random.default_rng(0), Initial({}, vectors=vectors_of())
    vectors = draw.normal(size=(4, TRAINED)).astype(np.float32)
    reported = ReportedTensors(Layout((), (), ()), initial)
    for node, vector in enumerate(vectors):
        reported.add(np.empty(0, np.float32), {"local:c": vector}, node=node)
    reported.take()
    expected = np.mean(vectors.astype(np.float64), axis=0).astype(np.float32)
    assert reported.natives["local:c"].tobytes() == expected.tobytes()
