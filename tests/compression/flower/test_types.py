"""Tensors of any type, value and name are sent in both directions of a whole round, or refused."""

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Krum

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressedGrid, CompressionMod, StatisticsAveraging
from edgewire.compression.make import make_codec
from tests.compression.flower.apps import (
    NODES,
    ask,
    moving,
    record_of,
    replies_to,
    same,
    to_targets,
)
from tests.compression.flower.federation import INT8, SHAPES, compressed_run, initial
from tests.compression.flower.federation import run as plain_run
from tests.grids import grid_of
from tests.same import expect_same

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


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, True),
        ({"exact": ["1"]}, False),
        ({"downlink": make_codec(quantizer="int8", exact=["1"])}, False),
    ],
)
def test_statistics_without_names_are_warned_of_once(options, warned, caplog):
    values = {"0": VALUES["w"], "1": np.full(15, 0.3, np.float32)}
    run(values=values, **options)
    lines = [r.getMessage() for r in caplog.records if "have no names" in r.getMessage()]
    assert len(lines) == warned
    assert all('exact=["3", "4"]' in line for line in lines)


def test_values_that_a_type_cannot_hold_are_refused(caplog):
    def change(node, found):
        return {**found, "small": np.array([0.5, 1, 2, 3])} if node == 1 else found

    _, _, traffic = run(change)
    assert traffic.failures == 2
    assert "its uint8 cannot hold the values" in caplog.text


def test_an_app_that_trains_in_float32_may_reply_in_float32():
    def change(node, found):
        return {**found, name: found[name].astype(np.float32) + 0.1}

    name = "bn.running_mean"
    assert run(change)[2].failures == 0


def test_a_codecs_pattern_that_matches_nothing_is_named():
    with pytest.raises(PayloadError, match=r"exact='heda' matches no tensor"):
        run(codec=make_codec(quantizer="int8", exact=["heda"]))


def with_tensor(name, value):
    """Return the initial model with another tensor."""
    return ArrayRecord({**initial(), **record_of({name: value})})


def all_but(name):
    """Return a training function that moves all tensors but one."""

    def train(node, values, state):
        others = {other: value for other, value in values.items() if other != name}
        return {"arrays": {**to_targets(node, others, state)["arrays"], name: values[name]}}

    return train


def test_a_lossless_method_changes_no_bit_of_float64():
    rng = np.random.default_rng(1)
    start = record_of({name: rng.normal(size=shape) for name, shape in SHAPES.items()})

    def train(node, values, state):
        return {"arrays": {n: np.sin(value + node) for n, value in values.items()}}

    plain = plain_run(moving(train), NODES, arrays=start)
    found, _ = compressed_run(moving(train, CompressionMod("dense")), NODES, arrays=start)
    expect_same(found, plain)


def test_integers_stay_exact_once_a_mean_has_made_floats_of_them():
    arrays = with_tensor("ids", np.array([16777217, 3], np.int64))

    app = moving(all_but("ids"), CompressionMod("topk", density=0.1))
    model, traffic = compressed_run(app, NODES, arrays=arrays)
    assert model["ids"].tolist() == [16777217, 3]
    assert traffic.failures == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("method", ["dense", "int8", "topk"])
@pytest.mark.parametrize("downlink", [None, "int8"])
def test_a_tensor_that_holds_infinity_at_first_is_sent_exactly(caplog, dtype, method, downlink):
    """An attention mask with infinities can be sent without `exact`, as in Flower alone."""
    mask = np.array([0, -np.inf, np.inf], dtype)
    arrays, moved = with_tensor("mask", mask), all_but("mask")

    def train(node, values, state):
        assert np.array_equal(values["mask"], mask)
        return moved(node, values, state)

    plain = plain_run(moving(train), NODES, arrays=arrays)
    app = moving(train, CompressionMod(method))
    model, traffic = compressed_run(app, NODES, arrays=arrays, downlink=downlink)
    assert traffic.failures == 0
    np.testing.assert_array_equal(model["mask"], plain["mask"])
    assert len([r for r in caplog.records if "infinity in 'mask'" in r.getMessage()]) == 1
    if method == "dense" and downlink is None:
        expect_same(model, plain)


def test_a_second_model_may_be_infinite_at_first_too():
    mask = np.array([0, -np.inf], np.float32)
    compressed = CompressedGrid(grid_of(moving(same, CompressionMod("int8")), 2), downlink="int8")
    other = record_of({"other": np.ones(3, np.float32), "mask": mask})
    for arrays in (initial(), other, initial(), other):
        for reply in replies_to(compressed, arrays):
            assert not reply.has_error()
            (record,) = reply.content.array_records.values()
            assert set(record) == set(arrays)
            if "mask" in record:
                np.testing.assert_array_equal(record["mask"].numpy(), mask)
    blown = record_of({"other": np.full(3, np.inf, np.float32), "mask": mask})
    with pytest.raises(PayloadError, match="training has diverged"):
        compressed.send_and_receive(ask(compressed, blown))


def test_a_first_model_with_nan_is_refused_by_the_tensors_name():
    arrays = with_tensor("mask", np.array([0, np.nan], np.float32))
    with pytest.raises(PayloadError, match="first model holds NaN in 'mask'"):
        compressed_run(moving(to_targets, CompressionMod("int8")), NODES, arrays=arrays)


def test_a_tensor_that_becomes_infinite_fails_that_node():
    mask = np.array([0, -np.inf], np.float32)
    moved = all_but("mask")

    def train(node, values, state):
        made = moved(node, values, state)["arrays"]
        return {"arrays": {**made, "mask": values["mask"][:: -1 if node == 0 else 1]}}

    app = moving(train, CompressionMod("int8"))
    model, traffic = compressed_run(app, NODES, arrays=with_tensor("mask", mask))
    assert traffic.failures == 3
    np.testing.assert_array_equal(model["mask"], mask)


@pytest.mark.parametrize("name", ["update", "flat", "payload", "log_running_var"])
def test_tensors_may_have_any_name(name):
    arrays = record_of({name: np.full(4, -2.0, np.float32), "b": np.ones(2, np.float32)})
    plain = plain_run(moving(to_targets), NODES, arrays=arrays)
    app = moving(to_targets, CompressionMod("dense"))
    model, traffic = compressed_run(app, NODES, arrays=arrays)
    assert traffic.failures == 0
    expect_same(model, plain)
