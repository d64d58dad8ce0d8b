"""A payload is taken as it was asked for: which tensors, and in which part each travels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Layout, PayloadError, decode, decode_update, make_codec
from compression.decoder import declared, expect
from compression.native_tensors import NativeTensor
from compression.wire_header import DTYPES

KINDS = [name for name in DTYPES if name != "bfloat16"]
CODECS = [make_codec(), make_codec(quantizer="int8"), make_codec("topk", density=0.3)]
SHAPES = st.lists(st.integers(0, 3), max_size=2).map(tuple)
NAMES = st.sampled_from(["w", "W", "b", "bn.running_mean"])


@st.composite
def models(draw):
    """Return a model's layout, and which of its tensors travel in their own type."""
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
    """Return what a payload says of its tensors: of those in the vector, names and types if asked
    for; of the others always.
    """
    columns = zip(layout.names, layout.dtypes, layout.shapes, strict=True)
    return [
        (t in own, shape, *((name, dtype) if names or t in own else ()))
        for t, (name, dtype, shape) in enumerate(columns)
    ]


@settings(deadline=None, max_examples=400)
@given(models(), models(), st.booleans(), st.sampled_from(CODECS))
def test_it_is_taken_if_it_says_what_was_asked_and_else_refused(asked, other, names, codec):
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
            expect(payload, asked[0], own=asked[1])
            continue
        for refusing in (decode_update, expect):
            with pytest.raises(PayloadError, match=r"another model|ends within") as error:
                refusing(payload, asked[0], own=asked[1])
            assert "\n" not in str(error.value)


def test_nothing_is_in_its_own_type_unless_that_was_asked():
    layout = Layout(("w", "b"), ((3,), (2,)), ("float32",) * 2)
    payload = sent(layout, (0,), CODECS[0], names=False)
    for refusing in (decode, decode_update, expect):
        with pytest.raises(PayloadError, match="w must travel in the vector, not in its own type"):
            refusing(payload, layout)
    with pytest.raises(PayloadError, match="b must travel in its own type, float32"):
        decode_update(payload, layout, own=(0, 1))
    assert decode_update(payload, layout, own=(0,)).own[0].name == "w"


def test_what_a_method_sends_exactly_is_asked_for_too():
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
