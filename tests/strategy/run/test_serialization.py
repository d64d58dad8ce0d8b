"""A value that is saved in a server's state is loaded with the same type."""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from safetensors.numpy import save

from edgewire.compression.flower import FlatArray, filled, flat_record, payload_record
from edgewire.compression.flower.replica import Replica
from edgewire.strategy.aggregation import SparseMean
from edgewire.strategy.asynchronous import Asynchronous
from edgewire.strategy.collector import RoundCollectorState
from edgewire.strategy.run.serialization import ABOUT, StateError, from_bytes, to_bytes
from edgewire.strategy.synchronous import SparseAveraging
from edgewire.task.optimizers import SGD


@dataclass
class Kept:
    value: Any


@dataclass
class Contents:
    first: RecordDict
    second: RecordDict
    replies: dict[str, Message]


def again(value):
    return from_bytes(Kept, to_bytes(Kept(value))).value


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 1 << 90, 0.1, float("inf"), "word", b"few", b"x" * 1000, [1, [2.5]],
        (1, "a"), {1: {"a": (2,)}, "b": None}, {3, 1}, frozenset({"x"}), [], {},
        deque([1]), Counter({2: 3}),
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_and_their_containers(value):
    found = again(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_keep_their_type_and_shape_and_may_be_written_to(dtype, shape):
    array = np.ones(shape, dtype)
    found = again({"w": [array]})["w"][0]
    assert (found.dtype, found.shape) == (array.dtype, shape)
    assert (found == array).all()
    assert found.flags.writeable


def test_a_numpy_scalar_stays_a_numpy_scalar():
    """A NumPy float64 is not loaded as a Python float: its sum with a float32 is a float64."""
    found = again(np.float64(0.5))
    assert (type(found), found) == (np.float64, 0.5)


def content():
    shared = np.arange(3, dtype=np.float32)
    return RecordDict(
        {
            "flat": flat_record(shared),
            "same": filled(ArrayRecord, {"w": FlatArray(shared), "count": FlatArray(np.array(7))}),
            "plain": ArrayRecord({"w": Array(np.ones((2, 2)))}),
            "payload": payload_record(b"payload"),
            "config": ConfigRecord({"a": 1, "b": b"x", "c": ["d"], "e": True, "f": 0.5}),
            "metrics": MetricRecord({"loss": 0.1, "all": [1, 2]}),
        }
    )


def test_records_and_messages(identity):
    message = Message(content(), 4, "train.step", group_id="9")
    replies = {
        "good": Message(content(), reply_to=message),
        "bad": Message(Error(2, "no power"), reply_to=message),
    }
    kept = Contents(content(), content(), replies)
    found = from_bytes(Contents, to_bytes(kept))
    for record in (found.first, found.replies["good"].content):
        assert {n: a.vector.tolist() for n, a in record["same"].items()} == {
            "w": [0, 1, 2], "count": 7,
        }  # fmt: skip
        assert record["flat"]["flat"].vector is record["same"]["w"].vector
        assert record["plain"] == content()["plain"]
        assert record["payload"]["payload"].data == b"payload"
        assert record["config"] == content()["config"]
        assert record["metrics"] == content()["metrics"]
    assert found.first["flat"]["flat"].vector is not found.second["flat"]["flat"].vector
    for name in ABOUT:
        good = (each["good"].metadata for each in (found.replies, replies))
        assert len({getattr(metadata, name) for metadata in good}) == 1
    assert found.replies["bad"].error.reason == "no power"


@pytest.mark.parametrize("value", [object(), len, np.random.default_rng(), [object()]],
                         ids=["object", "function", "generator", "list"])  # fmt: skip
def test_a_value_that_cannot_be_stored_is_named(value):
    with pytest.raises(TypeError, match="a state cannot hold"):
        to_bytes(Kept(value))


def test_a_state_with_other_fields_is_refused():
    @dataclass
    class Other:
        value: int
        more: int

    Other.__name__ = "Kept"
    with pytest.raises(StateError, match="saved by another version"):
        from_bytes(Other, to_bytes(Kept(1)))


def test_two_classes_of_one_name_and_classes_that_no_field_declares_are_refused():
    @dataclass
    class Second:
        value: Contents
        other: "type[Any]"

    other = dataclass(type("Contents", (), {"__annotations__": {}}))
    Second.__annotations__["other"] = other
    with pytest.raises(TypeError, match="two classes are named Contents"):
        to_bytes(Second(None, None))
    with pytest.raises(TypeError, match="a state cannot hold"):
        to_bytes(Kept(Contents(None, None, {})))


def test_a_state_of_another_strategy_is_refused():
    averaging = SparseAveraging()
    with pytest.raises(StateError, match="hold a PushesState, not a AveragingState"):
        averaging.load(Asynchronous().save())
    for wrong in (b"", b"x" * 100, averaging.save()[:-3]):
        with pytest.raises(StateError, match="hold no strategy's state"):
            averaging.load(wrong)


def test_an_array_that_occurs_twice_is_shared_again_after_loading():
    array = np.arange(5, dtype=np.uint32)
    state = SparseMean(3, 0.0, np.ones(3, np.float32), [array, array], True, 0.5)
    found = from_bytes(SparseMean, to_bytes(state))
    assert found.sets[0] is found.sets[1]
    assert found.sets[0].dtype == np.uint32
    assert found.dense
    empty = from_bytes(RoundCollectorState, to_bytes(RoundCollectorState()))
    assert empty == RoundCollectorState()


@pytest.mark.parametrize("head", [b"5", b"null", b"[1]", b"[" * 100_000])
def test_invalid_bytes_are_refused_as_a_state(head):
    data = save({"state": np.frombuffer(head, np.uint8)})
    for wrong in (data, None):
        with pytest.raises(StateError):
            from_bytes(RoundCollectorState, wrong)


def test_a_state_of_another_model_is_refused():
    kept = Replica.start(SGD(), 3, np.zeros(3, np.float32)).arrays
    arrays = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    with pytest.raises(ValueError, match="of another model or optimizer: 3 entries, not 4"):
        Replica.of(SGD(), arrays, kept)
