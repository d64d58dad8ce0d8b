"""Payloads of a segment (a node's part of a model): batch tensors, labels, copies of its state."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgewire.compression.base import PayloadError
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_natives import NativeTensor
from edgewire.pipeline.messages import (
    SnapshotForm,
    TargetTensor,
    pack,
    pack_copy,
    pack_targets,
    unpack,
    unpack_copy,
    unpack_targets,
)
from tests.same import expect_same
from tests.spoil import declaring

EXACT = make_codec()
FORM = SnapshotForm(5, 4, 0, {"mask": ((2,), "bool"), "steps": ((), "int64")}, 8)
BESIDE = {"steps": np.array(7), "mask": np.array([True, False])}


def pack_labels(labels, classes):
    return pack_targets([labels], [TargetTensor(below=classes)])


def unpack_labels(payload, rows, classes):
    (labels,) = unpack_targets(payload, rows, [TargetTensor(below=classes)])
    return labels


def labels_of(labels):
    """Return a payload of labels in their own type."""
    own = [NativeTensor(0, "labels", labels)]
    return EXACT.encode(np.empty(0, np.float32), Layout((), (), ()), own=own)


@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 9))
def test_tensors_are_restored_exactly(count, shape, seed):
    draw = np.random.default_rng(seed)
    tensors = [draw.normal(size=shape).astype(np.float32) for _ in range(count)]
    back = unpack(pack(tensors, EXACT), count, tuple(shape), "x")
    assert len(back) == count
    for one, other in zip(tensors, back, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("count", "shape"), [(1, (4, 3)), (2, (3, 4)), (1, (12,)), (3, (4, 3))])
def test_a_wrong_shape_is_refused_with_a_reason(count, shape):
    payload = pack([np.ones((4, 3), np.float32)] * 2, EXACT)
    with pytest.raises(PayloadError, match="activations of mini-batch 7: "):
        unpack(payload, count, shape, "activations of mini-batch 7")


@given(st.sampled_from([2, 10, 256, 257, 1000]), st.integers(0, 9))
def test_labels_are_restored_and_take_few_bytes(classes, seed):
    labels = np.random.default_rng(seed).integers(0, classes, (2, 300))
    payload = pack_labels(labels, classes)
    np.testing.assert_array_equal(unpack_labels(payload, (2, 300), classes), labels)
    if classes <= 256:
        assert len(payload) < 700


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (pack_labels(np.array([[3, 10]]), 11), "from 0 to 9"),
        (pack([np.ones((1, 2), np.float32)], EXACT), "another model"),
        (b"", "no payload"),
    ],
)
def test_payloads_that_are_not_labels_are_refused(payload, said):
    with pytest.raises(PayloadError, match=said):
        unpack_labels(payload, (1, 2), 10)


@settings(deadline=None)
@given(data=st.data())
def test_labels_are_integers_below_the_number_of_classes(data):
    classes = data.draw(st.sampled_from([2, 10, 256, 257]))
    kind = np.dtype(data.draw(st.sampled_from(["uint8", "int8", "int64", "float32", "bool"])))
    shape = data.draw(st.sampled_from([(2, 3), (3, 2), (6,), (1, 2, 3), (2, 0)]))
    values = arrays.from_dtype(kind, allow_nan=False, allow_infinity=False)
    given_ = data.draw(arrays.arrays(kind, shape, elements=values | st.just(kind.type(1))))
    good = kind == ("uint8" if classes <= 256 else "int64") and shape == (2, 3)
    if good and ((given_ >= 0) & (given_ < classes)).all():
        np.testing.assert_array_equal(unpack_labels(labels_of(given_), (2, 3), classes), given_)
        return
    with pytest.raises(PayloadError, match="labels: "):
        unpack_labels(labels_of(given_), (2, 3), classes)


@pytest.mark.parametrize("entries", [1 << 26, 1 << 40])
@pytest.mark.parametrize(
    "take",
    [
        lambda payload: unpack(payload, 1, (2, 2), "activations"),
        lambda payload: unpack_labels(payload, (1, 2), 10),
        lambda payload: unpack_copy(payload, FORM, whole=True),
        lambda payload: unpack_copy(payload, FORM, whole=False),
    ],
)
def test_40_bytes_that_declare_a_huge_tensor_take_little_memory(take, entries):
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError):
            take(declaring(entries))
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


def test_a_copy_holds_all_it_was_given():
    vectors = {"segment": np.arange(5, dtype=np.float32), "segment step": np.ones(1, np.float32)}
    found, others = unpack_copy(pack_copy(vectors, BESIDE), FORM, whole=True)
    expect_same(found, vectors)
    expect_same(others, BESIDE)


def vectors(**sizes):
    return {name.replace("_", " "): np.ones(size, np.float32) for name, size in sizes.items()}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("sizes", "beside", "said"),
    [
        ({"segment": 4}, {}, "has the shape"),
        ({"other": 5}, {}, "has the shape"),
        ({}, {}, "its 5 values"),
        *(({"segment": 5}, beside, "counters and constants are not those") for beside in (
            {}, {"steps": BESIDE["steps"]}, {**BESIDE, "more": np.array(1)},
            {**BESIDE, "steps": np.array([7])}, {**BESIDE, "steps": np.array(7, np.int32)},
        )),
    ],
)  # fmt: skip
def test_a_copy_of_another_segment_is_refused(sizes, beside, said, whole):
    empty = EXACT.encode(np.ones(0, np.float32), Layout((), (), ()))
    payload = pack_copy(vectors(**sizes), beside) if sizes else empty
    with pytest.raises(PayloadError, match=said):
        unpack_copy(payload, FORM, whole=whole)


def test_a_copy_of_weights_alone_holds_no_more():
    with pytest.raises(PayloadError, match="'segment step' has the shape"):
        unpack_copy(pack_copy(vectors(segment=5, segment_step=1), BESIDE), FORM, whole=False)


@pytest.mark.parametrize("samples", [8, 0, -1, 9, 2.5, 1e30])
def test_a_copy_within_a_mini_batch_is_of_some_of_its_samples(samples):
    given = {**vectors(segment=5, gradient=4), "samples": np.array([samples], np.float32)}
    payload = pack_copy(given, BESIDE)
    if samples == 8:
        assert unpack_copy(payload, FORM, whole=True)[0]["samples"] == 8
    else:
        with pytest.raises(PayloadError, match="samples of a mini-batch"):
            unpack_copy(payload, FORM, whole=True)


@pytest.mark.parametrize("count", [5, 30])
def test_a_copy_holds_no_more_than_an_optimizer_keeps(count):
    moments = {f"segment {key}": 400 for key in range(count)}
    payload = pack_copy(vectors(segment=500, **moments), BESIDE)
    form = FORM._replace(size=500, trained=400)
    with pytest.raises(PayloadError, match=r"entries allowed|at most \d+ are"):
        unpack_copy(payload, form, whole=True)
