"""The payload's format: sizes, names, limits, and a payload written by hand."""

import struct

import numpy as np
import pytest
import torch
from xxhash import xxh3_64_intdigest

from edgewire.compression.base import PayloadError, Rng
from edgewire.compression.decoder import decode
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_header import shape_table


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


def test_without_a_layout_size_is_limited(lenet, update_for):
    payload = make_codec("dense", "int8", "zstd").encode(update_for(lenet), lenet)
    assert decode(payload, max_size=lenet.size)[0].size == lenet.size
    with pytest.raises(PayloadError, match="more than the 61705 entries"):
        decode(payload, max_size=lenet.size - 1)


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


@pytest.mark.parametrize("seed", range(3))
def test_two_stages_draw_independent_numbers(seed):
    one, other = Rng(seed, 0).generator, Rng(seed, 1).generator
    assert (one.random(8) != other.random(8)).all()


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
