"""Tensors in their own type: every value of every type is restored, hostile tables are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_header import DTYPES
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.surgery import with_checksum

KINDS = [name for name in DTYPES if name != "bfloat16"]
LAYOUT = Layout(("w", "b"), ((40, 5), (5,)), ("float32",) * 2)
VECTOR = np.random.default_rng(0).normal(size=LAYOUT.size).astype(np.float32)
INT8 = make_codec(quantizer="int8")


def tensors(kind):
    numbers = arrays.from_dtype(np.dtype(kind), allow_nan=False, allow_infinity=False)
    return arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0), elements=numbers)


def model_of(own):
    """Return the layout of three parts: w, then the tensors `own` in their own type, then b."""
    names = ("w", *(each.name for each in own), "b")
    shapes = (LAYOUT.shapes[0], *(each.array.shape for each in own), LAYOUT.shapes[1])
    return Layout(names, shapes, ("float32", *(each.array.dtype.name for each in own), "float32"))


def encoded(own, codec=INT8):
    return codec.encode(VECTOR, LAYOUT, names=True, own=own)


@given(data=st.data())
def test_every_value_of_every_type_is_restored(data):
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    own = [NativeTensor(1 + i, f"t{i}", data.draw(tensors(kind))) for i, kind in enumerate(kinds)]
    payload = encoded(own)
    for model in (None, model_of(own)):
        at = tuple(each.position for each in own) if model else ()
        update = decode_update(payload, model, own=at)
        assert update.layout.names == ("w", "b")
        for sent, got in zip(own, update.own, strict=True):
            assert (got.position, got.name) == (sent.position, sent.name)
            assert got.array.dtype == sent.array.dtype
            assert got.array.shape == sent.array.shape
            assert got.array.tobytes() == sent.array.tobytes()
        np.testing.assert_allclose(update.values, VECTOR, atol=0.05)


@pytest.mark.parametrize("sparsifier", ["topk", "esgd", "cesgd", "dgc"])
def test_beside_a_selection_with_a_memory(sparsifier):
    codec, memory = make_codec(sparsifier), {}
    own = [NativeTensor(1, "steps", np.array([2**62 + 1, -5]))]
    for _ in range(2):
        payload = codec.encode(VECTOR, LAYOUT, memory=memory, own=own)
        update = decode_update(payload, model_of(own), own=(1,))
        np.testing.assert_array_equal(update.own[0].array, own[0].array)
        if codec.keeps:
            codec.restore(payload, LAYOUT, memory)  # the layout of the encoder


def test_nan_is_refused_before_the_memory_changes():
    memory = {}
    own = [NativeTensor(1, "half", np.array([np.nan], np.float16))]
    with pytest.raises(PayloadError, match="update holds NaN in half"):
        make_codec("topk").encode(VECTOR, LAYOUT, memory=memory, own=own)
    assert not memory


def test_declared_sizes_are_bounded_before_anything_is_allocated():
    payload = encoded([NativeTensor(1, "zeros", np.zeros(1 << 21))])
    assert len(payload) < 10_000
    with pytest.raises(PayloadError, match="more than"):
        decode_update(payload, max_size=1000)


def test_a_bool_is_0_or_1():
    payload = encoded([NativeTensor(1, "on", np.array([True, False]))])
    at = payload.rindex(b"\x01\x00", 0, len(payload) - 8)
    with pytest.raises(PayloadError, match="neither 0 nor 1"):
        decode_update(with_checksum(payload[:at] + b"\x02" + payload[at + 1 : -8]))
