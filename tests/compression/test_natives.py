"""Tensors in their own type are restored exactly; a payload must hold the requested tensors.

Each tensor must be in the requested part: the float32 vector of many tensors, or beside it.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import declared, decode, decode_update
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


CODECS = [make_codec(), make_codec(quantizer="int8"), make_codec("topk", density=0.3)]
SHAPES = st.lists(st.integers(0, 3), max_size=2).map(tuple)
NAMES = st.sampled_from(["w", "W", "b", "bn.running_mean"])


@st.composite
def models(draw):
    """Return a model's layout, and the positions of the tensors sent in their own dtype."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    shapes = tuple(draw(SHAPES) for _ in names)
    dtypes = tuple(draw(st.sampled_from(KINDS)) for _ in names)
    own = tuple(t for t in range(len(names)) if draw(st.booleans()))
    return Layout(tuple(names), shapes, dtypes), own


def sent(layout, own, codec, names):
    rest = layout.without(own)
    beside = [
        NativeTensor(t, layout.names[t], np.ones(layout.shapes[t], layout.dtypes[t])) for t in own
    ]
    vector = np.ones(rest.size, np.float32)
    return codec.encode(vector, rest, memory={}, names=names, own=beside)


def told(layout, own, names):
    """Return what a payload declares of each tensor: part and shape; name and dtype if known.

    Tensors in their own type always have a name and a dtype. Tensors in the float32 vector have
    them only if `names` is true.
    """
    columns = zip(layout.names, layout.dtypes, layout.shapes, strict=True)
    return [
        (t in own, shape, *((name, dtype) if names or t in own else ()))
        for t, (name, dtype, shape) in enumerate(columns)
    ]


@given(models(), models(), st.booleans(), st.sampled_from(CODECS))
def test_a_payload_is_accepted_only_if_it_declares_what_was_requested(asked, other, names, codec):
    for layout, own in (asked, other, (asked[0], other[1][: len(asked[0])])):
        if own and own[-1] >= len(layout):
            continue
        payload = sent(layout, own, codec, names)
        there, beside = declared(payload)
        assert (told(there, beside, names)) == told(layout, own, names)
        if told(layout, own, names) == told(*asked, names):
            update = decode_update(payload, asked[0], own=asked[1])
            assert update.layout == asked[0].without(asked[1])
            assert tuple(each.position for each in update.own) == asked[1]
            continue
        with pytest.raises(PayloadError, match=r"another model|ends within") as error:
            decode_update(payload, asked[0], own=asked[1])
        assert "\n" not in str(error.value)


def test_exact_tensors_must_be_requested_too():
    layout = Layout(("w", "bn.running_mean"), ((3,), (2,)), ("float32",) * 2)
    vector = np.ones(5, np.float32)
    exactly = {codec: codec.exact_tensors(layout) for codec in CODECS}
    assert list(exactly.values()) == [(), (1,), (1,)]
    for codec, exact in exactly.items():
        payload = codec.encode(vector, layout, memory={})
        assert decode_update(payload, layout, exact=exact).exact == exact
        for other in {(), (0,), (1,), (0, 1)} - {exact}:
            with pytest.raises(PayloadError, match="other exact tensors"):
                decode_update(payload, layout, exact=other)


def test_tensors_in_their_own_type_must_be_requested():
    layout = Layout(("w", "b"), ((3,), (2,)), ("float32",) * 2)
    payload = sent(layout, (0,), CODECS[0], names=False)
    for refusing in (decode, decode_update):
        with pytest.raises(PayloadError, match="in their own type must be none"):
            refusing(payload, layout)
    with pytest.raises(PayloadError, match="another model"):
        decode_update(payload, layout, own=(0, 1))
    assert decode_update(payload, layout, own=(0,)).own[0].name == "w"
