"""Tensors of a batch, labels and copies as payloads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression import Layout, PayloadError, make_codec
from compression.flower.tensors import (
    pack,
    pack_copy,
    pack_labels,
    unpack,
    unpack_copy,
    unpack_labels,
)

EXACT = make_codec()


@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 9))
def test_tensors_come_back_as_they_were(count, shape, seed):
    draw = np.random.default_rng(seed)
    tensors = [draw.normal(size=shape).astype(np.float32) for _ in range(count)]
    back = unpack(pack(tensors, EXACT), count, tuple(shape), "x")
    assert len(back) == count
    for one, other in zip(tensors, back, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("count", "shape"), [(1, (4, 3)), (2, (3, 4)), (1, (12,)), (3, (4, 3))])
def test_another_shape_is_refused_by_what_it_is(count, shape):
    payload = pack([np.ones((4, 3), np.float32)] * 2, EXACT)
    with pytest.raises(PayloadError, match="activations of mini-batch 7: "):
        unpack(payload, count, shape, "activations of mini-batch 7")


@given(st.sampled_from([2, 10, 256, 257, 1000]), st.integers(0, 9))
def test_labels_come_back_in_as_few_bytes_as_they_need(classes, seed):
    labels = np.random.default_rng(seed).integers(0, classes, (2, 300))
    payload = pack_labels(labels, classes)
    np.testing.assert_array_equal(unpack_labels(payload, (2, 300), classes), labels)
    if classes <= 256:
        assert len(payload) < 700


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (pack_labels(np.array([[3, 10]]), 11), "from 0 to 9"),
        (pack_labels(np.array([3, 4]), 10), "of shape"),
        (pack([np.ones((1, 2), np.float32)], EXACT), "no labels"),
        (b"", "no payload"),
    ],
)
def test_what_are_no_labels_is_refused(payload, said):
    with pytest.raises(PayloadError, match=said):
        unpack_labels(payload, (1, 2), 10)


def test_a_copy_holds_all_it_was_given():
    vectors = {"segment": np.arange(5, dtype=np.float32), "segment step": np.ones(1, np.float32)}
    beside = {"layers.0.1.num_batches_tracked": np.array(7), "mask": np.array([True, False])}
    found, others = unpack_copy(pack_copy(vectors, beside), 5)
    assert found.keys() == vectors.keys()
    for name, vector in vectors.items():
        np.testing.assert_array_equal(found[name], vector)
    for name, array in beside.items():
        assert others[name].dtype == array.dtype
        np.testing.assert_array_equal(others[name], array)


@pytest.mark.parametrize("vectors", [{"segment": 4}, {"other": 5}, {}])
def test_a_copy_of_another_segment_is_refused(vectors):
    given = {name: np.ones(size, np.float32) for name, size in vectors.items()}
    payload = (
        pack_copy(given, {}) if given else EXACT.encode(np.ones(0, np.float32), Layout((), (), ()))
    )
    with pytest.raises(PayloadError, match="its 5 values"):
        unpack_copy(payload, 5)
