"""Replies whose dtypes differ from the sent ones: valid replies are used, others are left out."""

import tracemalloc
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from numpy.lib import format as numpy_format

from edgewire.compression.flower import CompressedGrid, CompressionMod, payload_record
from edgewire.compression.flower.headers import HEADER
from edgewire.compression.flower.records import NUMPY
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_header import DTYPES
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.flower.apps import (
    NODES,
    ask,
    left_out,
    moving,
    record_of,
    replies_to,
    spoiling,
    to_targets,
    values_of,
)
from tests.compression.flower.federation import SHAPES, initial
from tests.grids import grid_of
from tests.spoil import declaring

RAW = make_codec(coder="raw")


def compressed_of(change, uplink="dense"):
    """Return a `CompressedGrid` to nodes; `change` modifies the replies of the first node."""
    app = moving(to_targets, CompressionMod(uplink), lambda node, values, state: {})
    return CompressedGrid(grid_of(spoiling(app, change)))


def with_payload(payload, **header):
    """Return a `change` that replaces a reply's payload, which declares its names."""

    def change(reply):
        said = {**reply.content[HEADER], "named": 1, **header}
        reply.content["arrays"], reply.content[HEADER] = payload_record(payload), ConfigRecord(said)

    return change


def in_vector(dtypes, **header):
    """Return a `change` that puts a reply's tensors into the float32 vector with these dtypes."""
    layout = Layout(tuple(SHAPES), tuple(SHAPES.values()), dtypes)
    payload = RAW.encode(np.ones(layout.size, np.float32), layout, names=True)
    return with_payload(payload, **header)


def beside(dtype):
    """Return a `change` that moves all tensors of a reply out of the float32 vector, as `dtype`."""
    given = enumerate(SHAPES.items())
    own = [NativeTensor(i, name, np.ones(shape, dtype)) for i, (name, shape) in given]
    payload = RAW.encode(np.ones(0, np.float32), Layout((), (), ()), names=True, own=own)
    return with_payload(payload, whole=1)


def expect_refused(compressed, caplog, said):
    """Assert that one reply is left out with the reason `said`; others have the sent dtypes."""
    sent = initial()
    replies = replies_to(compressed, sent)
    assert left_out(replies) == [1]
    assert compressed.traffic.failures == 1
    assert "node 1" in caplog.text
    assert said in caplog.text
    for reply in replies:
        if not reply.has_error():
            FedAvg().aggregate_train(1, [reply])
            for name, array in reply.content["arrays"].items():
                assert array.dtype == sent[name].dtype


@pytest.mark.parametrize("whole", [None, 1])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.startswith("float")])
def test_dtypes_that_the_vector_cannot_hold(dtype, whole, caplog):
    header = {"whole": 1} if whole else {}
    expect_refused(compressed_of(in_vector((dtype,) * len(SHAPES), **header)), caplog, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "int64", "uint8"])
def test_dtypes_that_were_not_requested(dtype, caplog):
    expect_refused(compressed_of(beside(dtype)), caplog, f"comes as {dtype}, float32 was sent")


def test_floats_beside_the_vector_are_refused(caplog):
    said = "travels in another part of the payload"
    expect_refused(compressed_of(beside("float32")), caplog, said)


@pytest.mark.parametrize("method", ["dense", "int8"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.int64])
def test_replies_in_another_dtype_are_used(method, dtype):
    """Apps may reply in another dtype: NumPy turns float32 into float64 and int32 into int64."""
    counts = np.array([1, 2], np.int32)

    def train(node, values, state):
        return {"arrays": {"w": values["w"].astype(dtype), "n": values["n"].astype(np.int64)}}

    values = {"w": np.full(3, 2.0, np.float32), "n": counts}
    compressed = CompressedGrid(grid_of(moving(train, CompressionMod(method))))
    for reply in replies_to(compressed, record_of(values)):
        found = values_of(reply.content["arrays"])
        np.testing.assert_array_equal(found["w"], values["w"])
        assert found["w"].dtype.kind == "f"
        assert found["n"].dtype == counts.dtype
        np.testing.assert_array_equal(found["n"], counts)
    assert compressed.traffic.failures == 0


@pytest.mark.parametrize("method", ["dense", "topk"])
def test_new_tensors_may_have_any_numpy_dtype(method):
    kinds = [kind for kind in DTYPES if kind != "bfloat16"]
    values = {f"adapter.{kind}": np.ones((4, 2), kind) for kind in kinds}

    def train(node, _, state):
        return {"arrays": values}

    options = {} if method == "dense" else {"density": 1.0}
    compressed = CompressedGrid(grid_of(moving(train, CompressionMod(method, **options))))
    replies = replies_to(compressed, initial())
    assert compressed.traffic.failures == 0
    assert len(replies) == NODES
    for reply in replies:
        for name, array in reply.content["arrays"].items():
            assert array.dtype == values[name].dtype
            np.testing.assert_array_equal(array.numpy(), values[name])


@pytest.mark.parametrize("entries", [1 << 22, 1 << 27, 1 << 40])
@pytest.mark.parametrize("part", ["vector", "own"])
def test_a_false_declared_size_is_refused(caplog, part, entries):
    """A payload of 40 bytes that declares a huge tensor is refused, in little memory."""
    compressed = compressed_of(with_payload(declaring(entries, part == "own")))
    messages = ask(compressed, initial())
    tracemalloc.start()
    try:
        replies = compressed.send_and_receive(messages)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert left_out(replies) == [1]
    assert peak < 1 << 21
    assert "entries allowed here" in caplog.text


def npy(dtype, shape, data=b""):
    """Return an .npy file with this dtype, shape and data, as bytes."""
    file = BytesIO()
    numpy_format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)
UNREADABLE = {
    "entries that are not there": Array("float32", (1 << 40,), NUMPY, npy("<f4", (1 << 40,))),
    "too few": Array("float32", (2, 3), NUMPY, npy("<f4", (2, 3), GOOD.tobytes()[:-4])),
    "too many": Array("float32", (2, 3), NUMPY, npy("<f4", (2, 3), GOOD.tobytes() + b"more")),
    "another shape": Array("float32", (3, 2), NUMPY, Array(GOOD).data),
    "another type": Array("float32", (2, 3), NUMPY, npy("<i4", (2, 3), GOOD.tobytes())),
    "objects": Array("object", (1,), NUMPY, npy("|O", (1,), b"12345678")),
    "noise": Array("float32", (2, 3), NUMPY, b"noise"),
    "nothing": Array("float32", (0,), NUMPY, b""),
    "a negative shape": Array("float32", (0,), NUMPY, npy("<f4", (-1,))),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_plain_arrays_are_checked_before_a_strategy_reads_them(name, kind, caplog):
    compressed = compressed_of(
        lambda reply: reply.content.update(more=ArrayRecord({"x": UNREADABLE[name]}))
    )
    assert left_out(replies_to(compressed, initial(), kind)) == [1]
    assert "node 1" in caplog.text
    assert "its array 'x'" in caplog.text


@pytest.mark.parametrize(
    "array",
    [Array(GOOD), Array(GOOD.T), Array(GOOD.astype(">f4")), Array(np.zeros((0, 3))),
     Array(np.array(1, np.float32)), Array("", (), NUMPY, Array(GOOD).data),
     Array("x", (9,), "mine", b"?")],
)  # fmt: skip
def test_plain_arrays_that_are_readable_are_handed_on(array):
    app = moving(to_targets, CompressionMod("dense"))
    answer = spoiling(app, lambda reply: reply.content.update(more=ArrayRecord({"x": array})))
    compressed = CompressedGrid(grid_of(answer, 1))
    (reply,) = replies_to(compressed, initial())
    assert reply.content["more"]["x"].data == array.data
    assert compressed.traffic.failures == 0
