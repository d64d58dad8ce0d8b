"""With a lossless method, `CompressedGrid` changes no result; it leaves out bad replies."""

from functools import cache

import numpy as np
import pytest
from flwr.serverapp.strategy import (
    Bulyan,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)

from edgewire.compression.flower import CompressionMod, Traffic
from edgewire.compression.flower.server.compressed_grid import CompressedGridState
from edgewire.compression.make import make_codec
from edgewire.compression.screening import Screening
from tests import spoil
from tests.compression.flower.federation import (
    NODES,
    PLAIN,
    ROUNDS,
    SHAPES,
    compressed_run,
    initial,
    node_app,
    run,
)
from tests.same import expect_same
from tests.spoil import UNUSABLE

STRATEGIES = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0),
    "FedAvgM": lambda: FedAvgM(fraction_evaluate=0, server_momentum=0.9),
    "FedAdam": lambda: FedAdam(fraction_evaluate=0),
    "FedYogi": lambda: FedYogi(fraction_evaluate=0),
    "FedAdagrad": lambda: FedAdagrad(fraction_evaluate=0),
    "FedProx": lambda: FedProx(fraction_evaluate=0, proximal_mu=0.1),
    "QFedAvg": lambda: QFedAvg(0.1, train_loss_key="loss", fraction_evaluate=0),
    "FedMedian": lambda: FedMedian(fraction_evaluate=0),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(fraction_evaluate=0),
    "Krum": lambda: Krum(fraction_evaluate=0, num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(
        fraction_evaluate=0, num_malicious_nodes=1, num_nodes_to_select=3
    ),
    "Bulyan": lambda: Bulyan(fraction_evaluate=0, num_malicious_nodes=0),
}


@cache
def uncompressed(name):
    """Return the model that the Flower strategy `name` trains without compression."""
    return run(node_app(), strategy=STRATEGIES[name]())


@pytest.mark.few(16)
@pytest.mark.parametrize("codec", [PLAIN, make_codec()], ids=["raw", "entropy"])
@pytest.mark.parametrize("downlink", [None, make_codec()], ids=["full", "lossless"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_lossless_codec_changes_no_bit_for_any_strategy(name, codec, downlink):
    app, strategy = node_app(CompressionMod(codec)), STRATEGIES[name]()
    got, traffic = compressed_run(app, strategy=strategy, downlink=downlink)
    assert traffic.failures == 0
    assert list(got) == list(SHAPES)
    expect_same(got, uncompressed(name))


@pytest.mark.parametrize("name", STRATEGIES)
def test_int8_payloads_are_close_and_four_times_smaller(name):
    plain = uncompressed(name)
    got, traffic = compressed_run(node_app(CompressionMod("int8")), strategy=STRATEGIES[name]())
    moved = np.linalg.norm(plain["fc.weight"] - initial()["fc.weight"].numpy())
    assert np.linalg.norm(got["fc.weight"] - plain["fc.weight"]) < 0.05 * moved
    assert traffic.client_updates == NODES * ROUNDS
    assert traffic.uplink_bytes * 2 < traffic.uplink_bytes_float32
    assert traffic.sparsity == 0


def test_entries_that_nodes_do_not_send_are_counted():
    size = sum(np.prod(shape, dtype=int) for shape in SHAPES.values())
    _, traffic = compressed_run(node_app(CompressionMod("topk", density=0.25)))
    assert traffic.uplink_entries_whole == size * NODES * ROUNDS
    assert traffic.uplink_entries == pytest.approx(size / 4 * NODES * ROUNDS, rel=0.1)
    assert traffic.sparsity == pytest.approx(0.75, abs=0.03)
    assert Traffic().sparsity is None  # nothing was sent


def test_equal_gives_all_nodes_the_same_weight():
    # Node 0 reports 10^9 samples.
    app = node_app(CompressionMod(PLAIN), spoil.metrics(num_examples=10**9))
    equal = Screening(equal=True)
    got, traffic = compressed_run(app, screening=equal)
    honest, _ = compressed_run(node_app(CompressionMod(PLAIN)), screening=equal)
    assert traffic.failures == 0
    expect_same(got, honest)
    assert np.abs(honest["fc.weight"] - uncompressed("FedAvg")["fc.weight"]).max() > 1e-3


def raises(reply):
    raise OSError("the sensor is gone\nand more lines")


FEW = ("a flipped bit", "another model", "a version of words", "no header")
SPOILED = {
    **{name: UNUSABLE[name] for name in FEW},
    "no payload": (spoil.record("arrays", spoil.PLAIN), "no payload"),
    "two records": (spoil.record("more", spoil.PLAIN), "records or metrics"),
    "no weight": (spoil.metrics(num_examples=0), "num-examples"),
    "other metrics": (spoil.metrics(extra=1.0), "metrics"),
    "a list for a number": (spoil.metrics(loss=[1.0, 2.0]), "metrics"),
    "raises": (raises, "and more lines"),
    "another message's": (spoil.header(number=ROUNDS + 1), "replies to message"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_bad_reply_is_left_out_counted_and_named(case, logged):
    change, reason = SPOILED[case]
    app = node_app(CompressionMod(PLAIN), change)
    got, traffic = compressed_run(app)
    assert traffic.failures == ROUNDS
    assert traffic.client_updates == ROUNDS * (NODES - 1)
    lines = logged()
    assert len(lines) == len({line.partition(": ")[2] for line in lines})  # each reason once
    assert all("node 3 left out" in line and reason in line for line in lines)
    assert all(np.isfinite(value).all() for value in got.values())


@pytest.mark.parametrize("well", [0, 1, 2])
def test_failures_in_a_row_are_counted_until_a_usable_reply(well):
    left = {"well": well}  # how many first replies of node 3 are usable

    def change(reply):
        left["well"] -= 1
        if left["well"] < 0:
            raises(reply)

    state = CompressedGridState()
    compressed_run(node_app(CompressionMod(PLAIN), change), state=state)
    assert state.failures.failed_nodes[3].streak == (ROUNDS - well, well * NODES)


def test_a_usable_reply_ends_the_failures_in_a_row():
    replies = []

    def change(reply):
        replies.append(reply)
        if len(replies) < ROUNDS:
            raises(reply)

    state = CompressedGridState()
    compressed_run(node_app(CompressionMod(PLAIN), change), state=state)
    assert state.failures.failed_nodes[3].failures == ROUNDS - 1
    assert state.failures.failed_nodes[3].streak is None


@pytest.mark.parametrize(
    "metrics", [{"loss": [1.0, 2.0]}, {"extra": 1.0}, {"num_examples": -4}, {"num_examples": 0}]
)
def test_a_bad_reply_to_an_evaluation_is_left_out(metrics):
    def lie(reply):
        if "arrays" not in reply.content:
            spoil.metrics(**metrics)(reply)

    seen = []

    class Seeing(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            seen.append(super().aggregate_evaluate(server_round, replies))
            return seen[-1]

    _, traffic = compressed_run(
        node_app(CompressionMod(PLAIN), lie), strategy=Seeing(fraction_evaluate=1)
    )
    assert traffic.failures == ROUNDS
    assert traffic.client_updates == ROUNDS * NODES
    assert seen[-1]["loss"] == pytest.approx((1 + 2 + 4 + 5 + 6) / 5)


def test_the_mean_is_over_the_nodes_that_remain():
    """If node 3 fails, the model equals that of Flower's FedAvg without node 3."""
    app = node_app(CompressionMod(PLAIN), spoil.payload(lambda data: b"?"))
    spoiled, _ = compressed_run(app)
    plain = run(node_app(spoil=raises))
    np.testing.assert_array_equal(spoiled["fc.weight"], plain["fc.weight"])
