"""A payload in its long and its short form: by hand, sizes, names, limits, and refusals.

The short form holds what the long form holds, without the shapes.
"""

import struct
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from edgewire.compression.base import PayloadError
from edgewire.compression.coders.shared_context import SharedContext
from edgewire.compression.decoder import declared, decode, decode_update, describe
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import get
from edgewire.compression.registry import names as methods
from edgewire.compression.wire import EXACT, OWN, SHORT, ids_of, parse, stream_sizes
from edgewire.compression.wire_header import shape_table, varint
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.surgery import with_checksum


def test_the_overhead_of_a_payload_is_small(lenet, make_layout):
    update = np.zeros(lenet.size, dtype=np.float32)
    assert len(make_codec("dense", "int8", "raw").encode(update, lenet)) <= lenet.size + 120
    assert len(make_codec("dense", "float32", "raw").encode(update, lenet)) <= 4 * lenet.size + 80
    block = [(512, 512, 3, 3), (512,), (512,), (512,), (512,), ()]
    resnet = make_layout(block * 20 + [(10, 512), (10,)])
    assert len(resnet) == 122
    assert len(shape_table(resnet)) < 500


def test_float32_raw_is_not_copied(lenet, mixed, update_for):
    for layout in (lenet, mixed):
        for names in (False, True):
            codec = make_codec("dense", "float32", "raw")
            payload = codec.encode(update_for(layout), layout, names=names)
            vector, _ = decode(payload, layout)
            assert not vector.flags.owndata
            assert not vector.flags.writeable
            start = np.frombuffer(payload, dtype=np.uint8).ctypes.data
            assert (vector.ctypes.data - start) % 8 == 0


def test_names_travel_on_request(mixed, update_for):
    codec = make_codec("dense", "float32", "raw")
    named = codec.encode(update_for(mixed), mixed, names=True)
    assert decode(named)[1] == mixed
    plain = codec.encode(update_for(mixed), mixed)
    assert decode(plain)[1] == Layout(("0", "1", "2", "3", "4"), mixed.shapes, ("float32",) * 5)
    for payload in (named, plain):
        assert decode(payload, mixed)[1] is mixed


def test_names_that_cannot_travel(update_for):
    codec = make_codec("dense", "float32", "raw")
    for names, dtype, problem in (("aa", "float32", "same name"), ("ab", "complex64", "dtype")):
        layout = Layout(tuple(names), ((2,), (2,)), (dtype,) * 2)
        codec.encode(update_for(layout), layout)
        with pytest.raises(ValueError, match=problem):
            codec.encode(update_for(layout), layout, names=True)


def test_another_model_is_refused(lenet, mixed, make_layout, update_for):
    payload = make_codec("dense", "int8", "zstd").encode(update_for(lenet), lenet)
    with pytest.raises(PayloadError, match="another model: it holds 10 tensors, 5 are expected"):
        decode(payload, mixed)
    shapes = [*lenet.shapes[:4], (400, 120), *lenet.shapes[5:]]
    with pytest.raises(PayloadError, match=r"layer4.weight has shape \(120, 400\), \(400, 120\)"):
        decode(payload, make_layout(shapes))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(61706),
        np.zeros(61705, dtype=np.float32),
        np.zeros((61706, 1), dtype=np.float32),
        np.zeros(2 * 61706, dtype=np.float32)[::2],
        np.zeros(61706, dtype=">f4"),
        [0.0] * 61706,
        torch.zeros(61706),
    ],
    ids=["float64", "short", "2-d", "strided", "big-endian", "list", "tensor"],
)
def test_updates_of_the_wrong_kind(wrong, lenet):
    with pytest.raises(ValueError, match="61706 contiguous float32 entries"):
        make_codec().encode(wrong, lenet)


def test_more_tensors_than_the_format_holds(make_layout):
    layout = make_layout([()] * 16_385)
    with pytest.raises(ValueError, match="at most 16384 tensors"):
        make_codec().encode(np.zeros(layout.size, dtype=np.float32), layout)


def test_the_format_by_hand():
    """The decoder reads a payload that was written from docs/payload.md alone."""
    values = [1.0, -2.5, 1e-3]
    body = b"EWP\x01" + bytes([0, 0, 0, 1])  # dense, float32, raw, with names
    body += bytes([2, 2, 1, 2, 0])  # two tensors: (1, 2) and ()
    names = bytes([0, 1]) + b"w" + bytes([7, 4]) + b"step"
    body += bytes([len(names)]) + names
    body += bytes([0, 0, 1, 12 << 1])  # all entries, no parameters, one uncoded stream of 12 bytes
    body += bytes(-len(body) % 8) + struct.pack("<3f", *values)
    payload = body + struct.pack("<Q", xxh3_64_intdigest(body))
    vector, layout = decode(payload)
    assert vector.tolist() == [np.float32(v) for v in values]
    assert layout == Layout(("w", "step"), ((1, 2), ()), ("float32", "int64"))
    codec = make_codec("dense", "float32", "raw")
    assert codec.encode(np.array(values, dtype=np.float32), layout, names=True) == payload


CODERS = [name for name in methods("coder") if get("coder", name).contextual]
METHODS = list(product(methods("sparsifier"), methods("quantizer"), CODERS))
SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=4)
VALUES = [1.0, -2.5, 1e-3]
SMALL = Layout(("w", "b"), ((1, 2), ()), ("float32",) * 2)
HEAD = bytes([SHORT, 0, 0, 4])  # dense, float32, context
PLAIN = HEAD + bytes([0, 0, 1, 0]) + struct.pack("<3f", *VALUES)  # all entries, no parameters


class Case:
    """A layout with statistics, tensors in their own type, an update, and what both ends know."""

    def __init__(self, shapes, own, seed):
        names = (*map(str, range(len(shapes))), "bn.running_mean", "last")
        shapes = (*shapes, (4,), (30 + seed % 50,))
        self.layout = Layout(names, shapes, ("float32",) * len(shapes))
        draw = np.random.default_rng(seed)
        self.update = draw.normal(size=self.layout.size).astype(np.float32)
        self.context = SharedContext(draw.integers(0, 256, self.layout.size, dtype=np.uint8))
        at = len(self.layout)
        array = np.arange(at)
        self.own = [NativeTensor(at, "steps", array)] if own else []
        added = (("steps",), ((at,),), (array.dtype.name,)) if own else ((), (), ())
        columns = (names, shapes, self.layout.dtypes)
        self.model = Layout(*(a + b for a, b in zip(columns, added, strict=True)))
        self.places = (at,) if own else ()

    def encoded(self, method, *, names=False, first=True):
        """Return a node's payload; if not `first`, its second one, and the first one's indices."""
        codec, memory, before = make_codec(*method), {}, None
        given = {"own": self.own, "context": self.context, "loss": 1.0, "names": names}
        payload = codec.encode(self.update, self.layout, memory=memory, **given)
        if not first:
            before = self.decoded(payload).selected
            payload = codec.encode(
                self.update, self.layout, memory=memory, as_before=True, seed=1, **given
            )
        return payload, before

    def decoded(self, payload, before=None):
        return decode_update(
            payload, self.model, own=self.places, before=before, context=self.context
        )


cases = st.builds(Case, SHAPES, st.booleans(), st.integers(0, 1 << 32))


@given(cases, st.sampled_from(METHODS), st.booleans())
def test_the_short_form_holds_what_the_long_form_holds(case, method, first):
    short, before = case.encoded(method, first=first)
    long, _ = case.encoded(method, names=True, first=first)
    for payload in (short, long):
        assert (payload[0] & ~(EXACT | OWN) == SHORT) == (payload is short)
        assert ids_of(payload) == make_codec(*method).ids
        assert make_codec(*method).made(payload)
    made, wanted = case.decoded(short, before), case.decoded(long, before)
    assert (made.layout, made.exact) == (wanted.layout, wanted.exact)
    assert made.values.tobytes() == wanted.values.tobytes()
    assert made.values.flags.aligned
    assert (made.indices is None) == (wanted.indices is None)
    if made.indices is not None:
        np.testing.assert_array_equal(made.indices, wanted.indices)
    for ours, theirs in zip(made.own, wanted.own, strict=True):
        assert (ours.position, ours.name) == (theirs.position, theirs.name)
        np.testing.assert_array_equal(ours.array, theirs.array)
    assert len(long) - len(short) >= 8 + len(shape_table(case.layout))


@given(cases, st.sampled_from(METHODS), st.integers(1, 255), st.binary(min_size=1, max_size=9))
def test_any_other_bytes_are_refused(case, method, mask, more):
    payload, _ = case.encoded(method)
    changed = [
        payload[:at] + bytes([payload[at] ^ mask]) + payload[at + 1 :] for at in range(len(payload))
    ]
    cuts = [payload[:end] for end in range(len(payload))]
    cuts += [payload[start:] for start in range(1, min(len(payload), 20))]
    for wrong in [*changed, *cuts, payload + more, more + payload]:
        with pytest.raises(PayloadError):
            case.decoded(wrong)


@given(cases)
def test_a_payload_without_shapes_needs_a_layout(case):
    payload, _ = case.encoded(("topk", "int8", CODERS[0]))
    for read in (decode, decode_update, declared, describe):
        with pytest.raises(PayloadError, match="holds no shapes: they must be known here"):
            read(payload)


def test_the_short_form_by_hand():
    """The decoder reads a payload that was written from docs/payload.md alone."""
    shapes = xxh3_64_intdigest(bytes([2, 2, 1, 2, 0]))  # two tensors: (1, 2) and ()
    seed = xxh3_64_intdigest(bytes(3), shapes)  # no entry was changed by the last eight updates
    payload = PLAIN + struct.pack("<I", xxh3_64_intdigest(PLAIN, seed) & 0xFFFFFFFF)
    codec, context = make_codec("dense", "float32", "context"), SharedContext(np.zeros(3, np.uint8))
    made = decode_update(payload, SMALL, context=context).dense()
    assert made.tolist() == [np.float32(value) for value in VALUES]
    update = np.array(VALUES, np.float32)
    assert codec.encode(update, SMALL, context=context) == payload
    assert codec.encode_sparse(None, update, SMALL, context=context) == payload


def test_values_that_lie_unaligned_are_decoded(lenet, update_for):
    codec = make_codec("topk", "float32", "context", density=1e-4)  # few values stay uncoded
    context = SharedContext(np.zeros(lenet.size, np.uint8))
    payload = codec.encode(update_for(lenet), lenet, context=context)
    parsed = parse(payload, lenet, lenet.size, context=context)
    assert not parsed.bodies[-1].coded
    expected = decode_update(payload, lenet, context=context).dense()
    starts = set()
    for shift in range(8):
        view = memoryview(bytearray(shift) + payload)[shift:]
        body = np.frombuffer(
            parse(view, lenet, lenet.size, context=context).bodies[-1].view, np.uint8
        )
        starts.add(body.ctypes.data % 4)
        update = decode_update(view, lenet, context=context)
        assert update.values.flags.aligned
        np.testing.assert_array_equal(update.dense(), expected)
    assert starts == {0, 1, 2, 3}


FLOATS = PLAIN[8:]
WRONG = {
    "another mark": (bytes([SHORT | 1]) + PLAIN[1:], "no payload"),
    "another version": (bytes([SHORT + 8]) + PLAIN[1:], "no payload"),
    "no bytes": (HEAD[:3], "no payload"),
    "nothing after the ids": (HEAD, "ends within"),
    "unknown ids": (bytes([SHORT, 0, 255, 4]) + PLAIN[4:], "quantizer 255"),
    "no exact tensors": (bytes([SHORT | EXACT]) + PLAIN[1:], "0 exact tensors of 2"),
    "tensors in their own type": (bytes([SHORT | OWN]) + PLAIN[1:], "another model"),
    "the last stream's length": (HEAD + bytes([0, 0, 1, 24]) + FLOATS, "which needs none"),
    "more bytes": (PLAIN + b"\0", "13 bytes instead of 12"),
    "fewer bytes": (PLAIN[:-1], "11 bytes instead of 12"),
    "a needless coding": (HEAD + bytes([0, 0, 1, 1]) + FLOATS, "no smaller than uncoded"),
    "no streams": (HEAD + bytes([0, 0, 0]), "0 streams of values, not 1"),
    "no streams, but bytes": (HEAD + bytes([0, 0, 0]) + FLOATS, "goes on after its header"),
    "two streams": (HEAD + bytes([0, 0, 2, 24, 0]) + FLOATS, "2 streams of values, not 1"),
    "a stream beyond the end": (HEAD + bytes([0, 0, 2, 26, 0]) + FLOATS, "ends within"),
    "a huge stream": (HEAD + bytes([0, 0, 2]) + varint(1 << 62) + bytes(1), "ends within"),
    "too many streams": (HEAD + bytes([0, 0, 17]) + bytes(17), "17 streams"),
    "too many indices": (HEAD + bytes([1, 4, 0, 2, 32, 0]) + bytes(32), "4 indices into 3"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_lies_under_a_right_checksum(wrong):
    (body, match), context = WRONG[wrong], SharedContext(np.zeros(3, np.uint8))
    with pytest.raises(PayloadError, match=match):
        decode_update(with_checksum(body, SMALL, context), SMALL, context=context)


@given(cases, st.sampled_from(METHODS), st.booleans(), st.booleans())
def test_the_sizes_of_the_streams_are_the_same_at_both_ends(case, method, names, first):
    payload, before = case.encoded(method, names=names, first=first)
    sizes = stream_sizes([payload], case.layout)
    assert sizes == case.decoded(payload, before).sizes
    assert sizes.indices + sizes.values < len(payload)
    update = case.decoded(payload, before)
    if update.indices is None or (not first and before is not None and before is update.selected):
        assert sizes.indices == 0
    assert stream_sizes([payload, payload], case.layout) == (2 * sizes.indices, 2 * sizes.values)


@given(st.binary(max_size=40), st.booleans())
def test_the_sizes_of_damaged_bytes_are_refused_or_possible(data, short):
    data = HEAD + data if short else data
    try:
        sizes = stream_sizes([data], SMALL)
    except PayloadError:
        return
    assert 0 <= sizes.indices + sizes.values <= len(data)


def test_without_a_layout_size_is_limited(lenet, update_for):
    payload = make_codec("dense", "int8", "zstd").encode(update_for(lenet), lenet)
    assert decode(payload, max_size=lenet.size)[0].size == lenet.size
    with pytest.raises(PayloadError, match="more than the 61705 entries"):
        decode(payload, max_size=lenet.size - 1)


@given(cases, st.sampled_from(METHODS), st.data())
def test_another_layout_of_the_same_size_is_refused(case, method, data):
    payload, _ = case.encoded(method)
    shapes = list(case.layout.shapes)
    at = data.draw(st.integers(0, len(shapes) - 1))
    way = data.draw(st.sampled_from(["one more dimension", "flat", "split", "order"]))
    if way == "one more dimension":
        shapes[at] = (1, *shapes[at])
    elif way == "flat":
        shapes[at] = (int(np.prod(shapes[at])),)
    elif way == "split":
        shapes += [()]
        shapes[-2] = (shapes[-2][0] - 1,)
    else:
        shapes = data.draw(st.permutations(shapes))
    names = tuple(map(str, range(len(shapes))))
    other = Layout(names, tuple(shapes), ("float32",) * len(shapes))
    assert other.size == case.layout.size
    if other.shapes != case.layout.shapes:
        with pytest.raises(PayloadError, match="another model or another context: its checksum"):
            parse(payload, other, 1 << 20, of_vector=True, context=case.context)
