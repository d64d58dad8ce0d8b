"""Native tensors as differences: bit-identical, small, and refused if damaged or misplaced."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from xxhash import xxh3_64_digest

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.native_differences import decode_differences, encode_differences
from edgewire.compression.wire import stream_sizes

KINDS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
SHAPES = ((), (1,), (3, 5), (0, 2), (300,))
COMMON = b"12345678"


def layout_of(arrays):
    names, each = tuple(arrays), arrays.values()
    return Layout(names, tuple(a.shape for a in each), tuple(a.dtype.name for a in each))


def values(kind, shape):
    options = {"allow_nan": False} if kind.startswith("float") else {}
    return nps.arrays(kind, shape, elements=nps.from_dtype(np.dtype(kind), **options))


@st.composite
def pairs(draw):
    """Return native tensors before and after a change, by name; some are not in the latter."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(SHAPES)), min_size=1))
    before = {str(i): draw(values(*kind)) for i, kind in enumerate(kinds)}
    changed = draw(st.sets(st.sampled_from(sorted(before)), min_size=1))
    return before, {n: draw(values(*kinds[int(n)])) for n in before if n in changed}


@given(pairs())
def test_tensors_arrive_bit_by_bit(pair):
    before, now = pair
    payload = encode_differences(now, before, layout_of(before), COMMON)
    found = decode_differences(payload, before, layout_of(before), COMMON)
    assert [each.name for each in found] == [*now]
    for position, name, array in found:
        assert name == [*before][position]
        assert (array.shape, array.dtype) == (now[name].shape, now[name].dtype)
        assert array.tobytes() == now[name].tobytes()


def observers(seed, moved):
    """Return tensors of per-channel observers; `moved`: by how much their values differ."""
    random, other = np.random.default_rng(1), np.random.default_rng(seed)
    names = [f"{i}.weight_fake_quant.activation_post_process.max_val" for i in range(8)]
    return {
        name: (random.random(32) * (1 + moved * other.normal(size=32))).astype(np.float32)
        for name in names
    }


@pytest.mark.parametrize(("moved", "most"), [(0, 40), (1e-4, 650), (1e-2, 850)])
def test_small_changes_take_few_bytes(moved, most):
    before, now = observers(2, 0), observers(3, moved)
    assert sum(each.nbytes for each in now.values()) == 1024
    payload = encode_differences(now, before, layout_of(before), COMMON)
    assert len(payload) <= most
    assert stream_sizes([payload]).values == len(payload)


def test_bytes_are_those_of_the_documented_format():
    before = {"a": np.array([1, 2], "<i2"), "b": np.array(7), "c": np.array([True])}
    now = {"a": np.array([4, 2], "<i2"), "c": np.array([False])}
    body = bytes([0xE8, 0b10100000, 0]) + bytes([6, 0, 0, 0]) + bytes([1, 0, 0, 0])
    payload = body + xxh3_64_digest(body + COMMON)[:4]
    assert encode_differences(now, before, layout_of(before), COMMON) == payload
    _, (_, _, flag) = decode_differences(payload, before, layout_of(before), COMMON)
    assert not flag


def signed(body):
    return body + xxh3_64_digest(body + COMMON)[:4]


BEFORE = {"x": np.ones(3, np.float32), "flag": np.array([True, False]), "n": np.array(3)}
GOOD = encode_differences(
    {"x": np.full(3, 1.5, np.float32), "flag": np.array([False, False])},
    BEFORE,
    layout_of(BEFORE),
    COMMON,
)
NAN = (np.full(3, np.nan, np.float32).view("<i4") - BEFORE["x"].view("<i4")) << 1
REFUSED = {
    "empty": (b"", "damaged"),
    "only a mark": (b"\xe8", "damaged"),
    "no checksum": (GOOD[:-4], "damaged"),
    "a flipped bit": (GOOD[:4] + b"\x7f" + GOOD[5:], "damaged"),
    "a tensor beyond the last": (signed(b"\xe8\xd0" + GOOD[2:-4]), "unknown coding"),
    "an unknown coding": (signed(b"\xe8\xc0\x02" + GOOD[3:-4]), "unknown coding"),
    "a short stream": (signed(GOOD[:-5]), "stream of"),
    "a long stream": (signed(GOOD[:-4] + b"\0"), "stream of"),
    "a coded stream that is no smaller": (signed(b"\xe8\xc0\x01" + GOOD[3:-4]), "no smaller"),
    "a coding of no stream": (signed(b"\xe8\xc0\x01\x02"), "unknown coding"),
    "padding": (signed(GOOD[:-5] + b"\x02"), "padding"),
    "NaN": (signed(b"\xe8\x80\0" + NAN.tobytes()), "NaN in x"),
    "a bool of 2": (signed(b"\xe8\x40\0" + bytes([2, 0, 0, 0])), "neither 0 nor 1"),
}


@pytest.mark.parametrize(("payload", "reason"), REFUSED.values(), ids=REFUSED)
def test_hostile_bytes_are_refused(payload, reason):
    with pytest.raises(PayloadError, match=reason):
        decode_differences(payload, BEFORE, layout_of(BEFORE), COMMON)


def test_other_common_values_are_refused():
    with pytest.raises(PayloadError, match="other initial"):
        decode_differences(GOOD, BEFORE, layout_of(BEFORE), b"87654321")


def test_nan_is_refused_by_the_encoder():
    with pytest.raises(PayloadError, match="NaN in x"):
        encode_differences({"x": NAN.view("<f4") * np.nan}, BEFORE, layout_of(BEFORE), COMMON)


def test_a_decoder_of_other_payloads_refuses_differences():
    with pytest.raises(PayloadError, match="no payload"):
        decode_update(GOOD)
