"""Integers, float16, float64 and `exact` tensors are sent in both directions of a whole round."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Krum

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressionMod, StatisticsAveraging
from edgewire.compression.make import make_codec
from tests.compression.flower.apps import moving, record_of
from tests.compression.flower.federation import INT8, compressed_run

LARGE = np.array([20, 60, 20_000, 2_000_000, 2**40 + 1])
VALUES = {
    "w": np.linspace(-1, 1, 300, dtype=np.float32).reshape(20, 15),
    "half": np.linspace(-1, 1, 500, dtype=np.float16),
    "bn.running_mean": np.full(15, 0.3, np.float16),
    "steps": LARGE,
    "on": np.array([True, False, True]),
    "small": np.arange(4, dtype=np.uint8),
    "double": np.array([1 + 2**-40, np.pi]),
    "bn.num_batches_tracked": np.array(7),
}


def run(
    change=lambda node, found: found,
    codec=INT8,
    strategy=FedAvg,
    values=VALUES,
    nodes=3,
    rounds=2,
    **options,
):
    """Train with nodes that reply `change(node, arrays)`; return model, nodes' models, traffic."""
    seen = []

    def train(node, found, state):
        seen.append(found)
        return {"arrays": change(node, found)}

    strategy = StatisticsAveraging(strategy(fraction_evaluate=0), exact=options.get("exact", ()))
    app = moving(train, CompressionMod(codec))
    model, traffic = compressed_run(app, nodes, strategy, rounds, record_of(values), **options)
    return model, seen, traffic


@pytest.mark.parametrize("strategy", [FedAvg, FedAvgM, FedAdam, Krum])
@pytest.mark.parametrize("downlink", [None, INT8, make_codec("topk", density=0.1)])
def test_all_tensors_except_floats_are_restored_exactly(strategy, downlink):
    model, seen, traffic = run(strategy=strategy, downlink=downlink)
    assert traffic.failures == 0
    for found in [*seen, model]:
        assert list(found) == list(VALUES)
        for name, value in VALUES.items():
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            if value.dtype.kind != "f" or name.startswith("bn."):
                np.testing.assert_array_equal(found[name], value)
            else:
                np.testing.assert_allclose(found[name], value, atol=0.02)


@pytest.mark.parametrize("downlink", ["int8", "topk"])
def test_a_model_may_have_far_more_integers_than_floats(downlink):
    values = {"w": np.ones(4, np.float32), "ids": np.arange(1000)}
    model, _, traffic = run(values=values, rounds=3, downlink=downlink)
    assert model["ids"].tolist() == list(range(1000))
    assert traffic.failures == 0


def test_integers_that_differ_are_averaged_in_their_own_type():
    def change(node, found):
        return {**found, "steps": LARGE + node * 6, "on": np.array([node > 0] * 3)}

    model, _, _ = run(change)
    np.testing.assert_array_equal(model["steps"], LARGE + 6)
    assert model["on"].all()


def test_a_robust_strategy_takes_integers_that_some_node_sent():
    def change(node, found):
        return {**found, "steps": LARGE + (60 if node == 4 else node)}

    model, _, _ = run(change, strategy=Krum, nodes=5)
    np.testing.assert_array_equal(model["steps"], LARGE + 2)


def test_a_float16_model_is_sent_as_float16():
    values = {"half": np.linspace(-1, 1, 5000, dtype=np.float16)}
    _, _, traffic = run(values=values)
    flower = len(record_of(values)["half"].data) * 3 * 2
    assert traffic.downlink_bytes_float32 == flower  # what Flower sends for float16
    assert traffic.uplink_bytes_float32 == flower
    assert 10_000 * 6 < flower < 11_000 * 6
    assert traffic.downlink_bytes <= flower
    assert traffic.uplink_bytes < flower / 2


EXACT = np.array([1 + 2**-40, np.pi, -1e-30])


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("downlink", [None, INT8])
def test_exact_adds_other_tensors(kind, downlink):
    values = {"w": VALUES["w"], "head.scale": EXACT.astype(kind)}
    moved = (EXACT * 1.1).astype(kind)
    model, seen, _ = run(
        lambda node, found: {**found, "head.scale": moved},
        make_codec("topk", "int8", density=0.1),
        FedAdam,
        values,
        downlink=downlink,
        exact=["head.*"],
    )
    np.testing.assert_array_equal(model["head.scale"], moved)
    np.testing.assert_array_equal(seen[0]["head.scale"], values["head.scale"])
    np.testing.assert_array_equal(seen[-1]["head.scale"], moved)


def test_a_codecs_exact_concerns_only_transport():
    """A codec's `exact` tensor is sent exactly; the strategy treats the tensor as a parameter."""
    values = {"w": VALUES["w"], "head": np.array([0.1, 1e-6, 1e6], np.float32)}
    moved = values["head"] * np.float32(1.1)
    codec = make_codec("topk", "int8", density=0.05, exact=["head"])
    change = lambda node, found: {**found, "head": moved}  # noqa: E731
    model, _, _ = run(change, codec, values=values, rounds=1)
    np.testing.assert_allclose(model["head"], moved, rtol=3e-7)


@pytest.mark.parametrize(
    ("codec", "options", "warned"),
    [
        (INT8, {}, True),
        (make_codec("topk"), {}, True),
        (INT8, {"exact": ["1"]}, False),
        (make_codec(quantizer="int8", exact=["1"]), {}, False),
        (make_codec(), {}, False),
        (make_codec(), {"downlink": INT8}, True),
    ],
)
def test_statistics_without_names_are_warned_of_once(codec, options, warned, caplog):
    values = {"0": VALUES["w"], "1": np.full(15, 0.3, np.float32)}
    run(codec=codec, values=values, **options)
    lines = [r.getMessage() for r in caplog.records if "have no names" in r.getMessage()]
    assert len(lines) == warned
    assert all('exact=["3", "4"]' in line for line in lines)


def test_values_that_a_type_cannot_hold_are_refused(caplog):
    def change(node, found):
        return {**found, "small": np.array([0.5, 1, 2, 3])} if node == 1 else found

    _, _, traffic = run(change)
    assert traffic.failures == 2
    assert "its uint8 cannot hold the values" in caplog.text


@pytest.mark.parametrize(
    "codec",
    [make_codec("topk", density=0.1), make_codec("topk", "int8", density=0.1), make_codec("esgd"),
     make_codec(quantizer="int8", feedback=True), make_codec("dgc", momentum=0.0)],
    ids=lambda codec: f"{codec.sparsifier.name}-{codec.quantizer.name}",
)  # fmt: skip
def test_a_lost_reply_is_put_back_in_a_model_with_integers(codec):
    """A round without a used reply loses nothing: nodes add their updates to their residuals."""
    lost = iter([0, 1])

    class Losing(FedAvg):
        def aggregate_train(self, server_round, replies):
            if next(lost, 2) == 0:
                return None, None
            return super().aggregate_train(server_round, replies)

    def change(node, found):
        return {**found, "w": found["w"] + np.float32(0.1), "steps": found["steps"] + 1}

    model, _, traffic = run(change, codec, Losing, rounds=5)
    assert traffic.failures == 0
    np.testing.assert_array_equal(model["steps"], LARGE + 4)  # four rounds were used


def test_an_app_that_trains_in_float32_may_reply_in_float32():
    def change(node, found):
        return {**found, name: found[name].astype(np.float32) + 0.1}

    name = "bn.running_mean"
    assert run(change)[2].failures == 0


def test_a_codecs_pattern_that_matches_nothing_is_named():
    with pytest.raises(PayloadError, match=r"exact='heda' matches no tensor"):
        run(codec=make_codec(quantizer="int8", exact=["heda"]))
