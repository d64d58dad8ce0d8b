"""Payloads of native tensors: frozen parameters, and a local algorithm's vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.native_tensors import Initial, LocalVectors
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec

TRAINED = Layout(("weight", "bias"), ((3, 4), (3,)), ("float32", "float32"))
QUANTIZERS = ["float32", "float16", "bfloat16", "int8", "int4", "qsgd"]
NAMES = ("local:control", "local:momentum")


def initial(quantizer="float32", names=("control", "momentum"), frozen=("base",)):
    vectors = LocalVectors.of(names, TRAINED, make_codec(quantizer=quantizer, feedback=False))
    natives = {"base": np.arange(40, dtype=np.float32), "count": np.array(3)}
    return Initial(natives, frozen, vectors)


def changed(seed, *names):
    random = np.random.default_rng(seed)
    found = {name: random.normal(size=15).astype(np.float32) for name in names}
    return {**initial().arrays, "count": np.array(seed), **found}


@pytest.mark.parametrize("quantizer", QUANTIZERS)
@given(seed=st.integers(0, 99), names=st.sets(st.sampled_from(NAMES)))
def test_vectors_arrive_as_the_quantizer_encodes_them(quantizer, seed, names):
    start, now = initial(quantizer), changed(seed, *names)
    found = start.all(start.payload(now))
    assert found.keys() == now.keys()
    for name, array in now.items():
        if name in NAMES and quantizer != "float32":
            scale = np.abs(array).max()
            assert np.abs(found[name] - array).max() <= 1.01 * scale
            assert not array.any() or found[name].any()
        else:
            assert np.array_equal(found[name], array)
    again = start.all(start.payload(now))
    assert all(np.array_equal(again[name], found[name]) for name in found)


@pytest.mark.parametrize("quantizer", ["int8", "qsgd", "float32"])
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_hostile_payloads_are_refused_or_have_the_right_shapes(quantizer, tail, at, byte):
    start = initial(quantizer)
    good = bytearray(start.payload(changed(1, *NAMES)))
    good[at % len(good)] ^= byte
    for payload in (bytes(good), bytes(good) + tail, tail):
        try:
            found = start.read(payload)
        except PayloadError:
            continue
        for name, array in found.items():
            expected = start.arrays[name]
            assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
            assert np.isfinite(array).all()


@pytest.mark.parametrize(
    "other",
    [
        initial("int8", names=("control",)),
        initial("int8", names=("control", "momentum", "third")),
    ],
)
def test_vectors_of_another_algorithm_are_refused(other):
    names = [name for name in other.vectors.names if name in NAMES]
    payload = other.payload({**other.arrays, **{n: np.ones(15, np.float32) for n in names}})
    with pytest.raises(PayloadError):
        initial("int8").read(payload)
    with pytest.raises(PayloadError):
        initial("float32").read(payload)


def test_a_sparse_payload_of_vectors_is_refused():
    start = initial("int8")
    codec = make_codec("topk", density=0.2)
    payload = codec.encode(np.arange(30, dtype=np.float32), start.vectors.layout)
    with pytest.raises(PayloadError, match="another part"):
        start.read(payload)


def test_frozen_parameters_and_zeros_are_not_in_the_first_message():
    start = initial("int8")
    assert set(start.read(start.unfrozen)) == {"count"}
    assert set(start.read(start.whole)) == {"base", "count"}
    assert not initial(frozen=(), names=()).read(b"")


def test_a_node_with_other_initial_values_refuses_differences():
    start = initial()
    there = Initial({"base": np.ones(40, np.float32), "count": np.array(3)}, (), start.vectors)
    with pytest.raises(PayloadError, match="other initial"):
        there.read(start.payload(changed(2)))


def test_a_negative_counter_is_refused_in_differences():
    start = Initial({"norm.num_batches_tracked": np.array(3)})
    with pytest.raises(PayloadError, match="below 0"):
        start.read(start.payload({"norm.num_batches_tracked": np.array(-1)}))


def test_a_tensor_of_another_dtype_is_refused():
    start = initial(names=())
    with pytest.raises(PayloadError, match="no native tensor count"):
        start.read(start.payload({**start.arrays, "count": np.array(2.5)}))
