"""Valid tensors of unusual types, values and names are sent unchanged; invalid ones are refused."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from compression import PayloadError
from compression.flower import CompressedGrid, CompressionMod
from tests.compression.flower.apps import NODES, ask, grid_of, moving, only_of, to_targets
from tests.compression.flower.federation import SHAPES, compressed_run, initial, run


def test_a_lossless_method_changes_no_bit_of_float64():
    rng = np.random.default_rng(1)
    start = ArrayRecord({n: Array(rng.normal(size=shape)) for n, shape in SHAPES.items()})

    def train(node, values, state):
        return {"arrays": {n: np.sin(value + node) for n, value in values.items()}}

    plain = run(FedAvg(fraction_evaluate=0), moving(train), NODES, arrays=start)
    found, _ = compressed_run(
        FedAvg(fraction_evaluate=0), moving(train, CompressionMod("dense")), NODES, arrays=start
    )
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value)


def test_integers_stay_exact_once_a_mean_has_made_floats_of_them():
    arrays = ArrayRecord({**initial(), "ids": Array(np.array([16777217, 3], np.int64))})

    def train(node, values, state):
        moved = to_targets(node, {n: v for n, v in values.items() if n != "ids"}, state)["arrays"]
        return {"arrays": {**moved, "ids": values["ids"]}}

    app = moving(train, CompressionMod("topk", density=0.1))
    model, traffic = compressed_run(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert model["ids"].tolist() == [16777217, 3]
    assert traffic.failures == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_infinity_is_refused_in_every_type(dtype):
    arrays = ArrayRecord({"w": Array(np.zeros(4, dtype))})

    def blown(values):
        return {"w": np.full(4, np.inf, dtype)}

    app = moving(only_of(0, blown), CompressionMod("dense"))
    model, traffic = compressed_run(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert traffic.failures == 3
    assert np.isfinite(model["w"]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("method", ["dense", "int8", "topk"])
@pytest.mark.parametrize("downlink", [None, "int8"])
def test_a_tensor_that_holds_infinity_at_first_is_sent_exactly(caplog, dtype, method, downlink):
    """An attention mask with infinities can be sent without `exact`, as in Flower alone."""
    mask = np.array([0, -np.inf, np.inf], dtype)
    arrays = ArrayRecord({**initial(), "mask": Array(mask)})

    def train(node, values, state):
        assert np.array_equal(values["mask"], mask)
        moved = to_targets(node, {n: v for n, v in values.items() if n != "mask"}, state)["arrays"]
        return {"arrays": {**moved, "mask": values["mask"]}}

    plain = run(FedAvg(fraction_evaluate=0), moving(train), NODES, arrays=arrays)
    with caplog.at_level(logging.WARNING, "edgewire"):
        model, traffic = compressed_run(
            FedAvg(fraction_evaluate=0), moving(train, CompressionMod(method)), NODES,
            arrays=arrays,
            downlink=downlink,
        )  # fmt: skip
    assert traffic.failures == 0
    np.testing.assert_array_equal(model["mask"], plain["mask"])
    assert len([r for r in caplog.records if "infinity in 'mask'" in r.getMessage()]) == 1
    if method == "dense" and downlink is None:
        for name, value in plain.items():
            np.testing.assert_array_equal(model[name], value)


def test_a_second_model_may_be_infinite_at_first_too():
    """In an app with two models, each may hold infinities in its first version."""
    mask = np.array([0, -np.inf], np.float32)
    same = moving(lambda node, values, state: {"arrays": values}, CompressionMod("int8"))
    compressed = CompressedGrid(grid_of(same, 2), downlink="int8")
    other = ArrayRecord({"other": Array(np.ones(3, np.float32)), "mask": Array(mask)})
    for arrays in (initial(), other, initial(), other):
        for reply in compressed.send_and_receive(ask(compressed, arrays)):
            assert not reply.has_error()
            (record,) = reply.content.array_records.values()
            assert set(record) == set(arrays)
            if "mask" in record:
                np.testing.assert_array_equal(record["mask"].numpy(), mask)
    blown = ArrayRecord({"other": Array(np.full(3, np.inf, np.float32)), "mask": Array(mask)})
    with pytest.raises(PayloadError, match="training has diverged"):
        compressed.send_and_receive(ask(compressed, blown))


def test_a_first_model_with_nan_is_refused_by_the_tensors_name():
    arrays = ArrayRecord({**initial(), "mask": Array(np.array([0, np.nan], np.float32))})
    with pytest.raises(PayloadError, match="first model holds NaN in 'mask'"):
        compressed_run(FedAvg(), moving(to_targets, CompressionMod("int8")), NODES, arrays=arrays)


def test_a_tensor_that_becomes_infinite_fails_that_node():
    mask = np.array([0, -np.inf], np.float32)
    arrays = ArrayRecord({**initial(), "mask": Array(mask)})

    def train(node, values, state):
        finite = {name: value for name, value in values.items() if name != "mask"}
        made = to_targets(node, finite, state)["arrays"]
        return {"arrays": {**made, "mask": values["mask"][:: -1 if node == 0 else 1]}}

    app = moving(train, CompressionMod("int8"))
    model, traffic = compressed_run(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert traffic.failures == 3
    np.testing.assert_array_equal(model["mask"], mask)


@pytest.mark.parametrize("name", ["update", "flat", "payload", "log_running_var"])
def test_tensors_may_have_any_name(name):
    arrays = ArrayRecord(
        {name: Array(np.full(4, -2.0, np.float32)), "b": Array(np.ones(2, np.float32))}
    )
    strategy = FedAvg(fraction_evaluate=0)
    plain = run(strategy, moving(to_targets), NODES, arrays=arrays)
    model, traffic = compressed_run(
        strategy, moving(to_targets, CompressionMod("dense")), NODES, arrays=arrays
    )
    assert traffic.failures == 0
    for key, value in plain.items():
        assert np.array_equal(model[key], value)
