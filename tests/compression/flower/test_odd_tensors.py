"""Tensors of odd types, values and names: valid ones come as they are, others are refused."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from compression import PayloadError
from compression.flower import Uplink
from tests.compression.flower.apps import NODES, moving, only_of, to_targets
from tests.compression.flower.federation import SHAPES, initial, linked, run


def test_a_lossless_method_changes_no_bit_of_float64():
    rng = np.random.default_rng(1)
    start = ArrayRecord({n: Array(rng.normal(size=shape)) for n, shape in SHAPES.items()})

    def train(node, values, state):
        return {"arrays": {n: np.sin(value + node) for n, value in values.items()}}

    plain = run(FedAvg(fraction_evaluate=0), moving(train), NODES, arrays=start)
    found, _ = linked(
        FedAvg(fraction_evaluate=0), moving(train, Uplink("dense")), NODES, arrays=start
    )
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value)


def test_integers_stay_exact_once_a_mean_has_made_floats_of_them():
    arrays = ArrayRecord({**initial(), "ids": Array(np.array([16777217, 3], np.int64))})

    def train(node, values, state):
        moved = to_targets(node, {n: v for n, v in values.items() if n != "ids"}, state)["arrays"]
        return {"arrays": {**moved, "ids": values["ids"]}}

    app = moving(train, Uplink("topk", density=0.1))
    model, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert model["ids"].tolist() == [16777217, 3]
    assert traffic.failures == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_infinity_is_refused_in_every_type(dtype):
    arrays = ArrayRecord({"w": Array(np.zeros(4, dtype))})

    def blown(values):
        return {"w": np.full(4, np.inf, dtype)}

    app = moving(only_of(0, blown), Uplink("dense"))
    model, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert traffic.failures == 3
    assert np.isfinite(model["w"]).all()


def test_a_mask_of_infinities_goes_by_its_name():
    mask = np.array([0, -np.inf], np.float32)
    arrays = ArrayRecord({**initial(), "mask": Array(mask)})

    def train(node, values, state):
        moved = to_targets(node, {n: v for n, v in values.items() if n != "mask"}, state)["arrays"]
        return {"arrays": {**moved, "mask": mask}}

    app = moving(train, Uplink("int8"))
    with pytest.raises(PayloadError, match=r"goes by exact=\[its name\]"):
        linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    model, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays, exact=["mask"])
    assert traffic.failures == 0
    assert (model["mask"] == mask).all()


@pytest.mark.parametrize("name", ["update", "flat", "payload", "log_running_var"])
def test_tensors_may_have_any_name(name):
    arrays = ArrayRecord(
        {name: Array(np.full(4, -2.0, np.float32)), "b": Array(np.ones(2, np.float32))}
    )
    strategy = FedAvg(fraction_evaluate=0)
    plain = run(strategy, moving(to_targets), NODES, arrays=arrays)
    model, traffic = linked(strategy, moving(to_targets, Uplink("dense")), NODES, arrays=arrays)
    assert traffic.failures == 0
    for key, value in plain.items():
        assert np.array_equal(model[key], value)
