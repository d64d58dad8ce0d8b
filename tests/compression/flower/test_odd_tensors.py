"""Valid tensors of unusual types, values and names are sent unchanged; invalid ones are refused."""

import numpy as np
import pytest
from flwr.app import ArrayRecord

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressedGrid, CompressionMod
from tests.compression.flower.apps import (
    NODES,
    ask,
    moving,
    record_of,
    replies_to,
    same,
    to_targets,
)
from tests.compression.flower.federation import SHAPES, compressed_run, initial, run
from tests.grids import grid_of
from tests.same import expect_same


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

    plain = run(moving(train), NODES, arrays=start)
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

    plain = run(moving(train), NODES, arrays=arrays)
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
    plain = run(moving(to_targets), NODES, arrays=arrays)
    app = moving(to_targets, CompressionMod("dense"))
    model, traffic = compressed_run(app, NODES, arrays=arrays)
    assert traffic.failures == 0
    expect_same(model, plain)
