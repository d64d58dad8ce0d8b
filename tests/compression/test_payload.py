"""What holds for every combination of registered methods."""

import random
import struct
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from xxhash import xxh3_64_intdigest

from compression import (
    Codec,
    Description,
    Layout,
    PayloadError,
    decode,
    decode_update,
    describe,
    make_codec,
)
from compression import names as methods
from compression.payload import parts_of
from compression.registry import get
from compression.stages import Rng, Step
from compression.statistics import exact_tensors, split

# Sparsifiers meet quantizers, and both sorts of selection meet every pair that a decoder can see.
COMBINATIONS = sorted(
    {
        *product(methods("sparsifier"), methods("quantizer"), ["entropy"]),
        *product(["dense", "topk"], methods("quantizer"), methods("coder")),
    }
)
# What a decoder can tell apart.
DECODERS = [c for c in COMBINATIONS if c[0] in ("dense", "topk")]
every_decoder = pytest.mark.parametrize(
    ("sparsifier", "quantizer", "coder"), DECODERS, ids=["-".join(c) for c in DECODERS]
)
every_combination = pytest.mark.parametrize(
    ("sparsifier", "quantizer", "coder"), COMBINATIONS, ids=["-".join(c) for c in COMBINATIONS]
)

SPECIAL = {
    "empty": np.zeros(0),
    "one": np.array([0.1]),
    "zeros": np.zeros(300),
    "negative zeros": -np.zeros(300),
    "all negative": -np.linspace(1e-3, 1, 300),
    "all equal": np.full(300, 0.3),
    "subnormal": np.linspace(-1e-40, 1e-40, 300),
    "smallest": np.full(300, np.finfo(np.float32).smallest_subnormal),
    "huge": np.linspace(-3e38, 3e38, 300),
    "largest": np.full(300, np.finfo(np.float32).max),
    "wide": np.geomspace(1e-45, 3e38, 300),
}


def check_round_trip(codec: Codec, update: np.ndarray, layout: Layout) -> None:
    """Decode what is encoded; every value within the quantizer's own bound."""
    before = update.copy()
    payload = codec.encode(update, layout, seed=3)
    np.testing.assert_array_equal(update, before)
    cut = split(layout, exact_tensors(layout))
    trained, exact = cut.gather(update), cut.gather_exact(update)
    with np.errstate(all="ignore"):
        indices, values, _ = codec.sparsifier.select(trained, Step(cut.layout, {}, Rng(3, 0)))
        bound = codec.quantizer.error_bound(values, parts_of(indices, cut.layout))
    assert bound.shape == values.shape
    if indices is None:
        values, bound = cut.merge(values, exact), cut.merge(bound, np.zeros_like(exact))
    else:
        bound = cut.widen(indices, bound, np.zeros_like(exact))[1]
        indices, values = cut.widen(indices, values, exact)
    for given_layout in (layout, None):
        sent = decode_update(payload, given_layout)
        assert sent.layout.shapes == layout.shapes
        assert sent.values.dtype == np.float32
        assert sent.values.flags.aligned
        assert (indices is None) == (sent.indices is None)
        if indices is not None:
            np.testing.assert_array_equal(sent.indices, indices)
        assert (np.abs(sent.values.astype(np.float64) - values) <= bound).all()
        vector, found = decode(payload, given_layout)
        assert (vector.dtype, vector.shape) == (np.float32, (layout.size,))
        assert found == sent.layout
        np.testing.assert_array_equal(vector, sent.dense(np.full(layout.size, 7, np.float32)))


@every_combination
def test_special_values(sparsifier, quantizer, coder, make_layout):
    for special in SPECIAL.values():
        update = special.astype(np.float32)
        n = len(update)
        layout = make_layout([(n // 3, 3), ()][: 2 if n % 3 else 1] if n else [])
        check_round_trip(make_codec(sparsifier, quantizer, coder), update, layout)


@every_combination
def test_real_sizes(sparsifier, quantizer, coder, lenet, mixed, update_for):
    codec = make_codec(sparsifier, quantizer, coder)
    for layout in (lenet, mixed):
        check_round_trip(codec, update_for(layout), layout)


HUGE = sorted(
    {
        *product(["dense"], methods("quantizer"), ["entropy"]),
        *product(methods("sparsifier"), ["float16"], ["entropy"]),
    }
)


@pytest.mark.parametrize("combination", HUGE, ids="-".join)
def test_a_huge_tensor(combination, make_layout):
    layout = make_layout([(2048, 1024), (3,)])
    update = np.random.default_rng(4).laplace(size=layout.size).astype(np.float32)
    check_round_trip(make_codec(*combination), update, layout)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_layout_any_values(data):
    shapes = data.draw(st.lists(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    names = tuple(f"layer {i}" for i in range(len(shapes)))
    layout = Layout(names, tuple(shapes), ("float32",) * len(shapes))
    bits = data.draw(st.binary(min_size=4 * layout.size, max_size=4 * layout.size))
    update = np.frombuffer(bits, dtype=np.float32).copy()
    update[~np.isfinite(update)] = 1
    check_round_trip(make_codec(*data.draw(st.sampled_from(COMBINATIONS))), update, layout)


@pytest.mark.parametrize("coder", methods("coder"))
def test_float32_is_exact(coder, lenet, update_for):
    update = update_for(lenet)
    update[:4] = [-0.0, 1e-45, 3.4e38, -1e-39]
    vector, _ = decode(make_codec("dense", "float32", coder).encode(update, lenet), lenet)
    assert vector.tobytes() == update.tobytes()


@every_decoder
def test_what_is_not_finite_is_refused(sparsifier, quantizer, coder, lenet):
    codec = make_codec(sparsifier, quantizer, coder)
    for bad, tensor in product([np.nan, np.inf, -np.inf], [0, 7, 9]):
        update = np.zeros(lenet.size, dtype=np.float32)
        update[lenet.offsets[tensor]] = bad
        what = "NaN" if np.isnan(bad) else "infinity"
        with pytest.raises(PayloadError, match=f"update holds {what} in layer{tensor}.weight: "):
            codec.encode(update, lenet)


@every_combination
def test_same_input_same_bytes(sparsifier, quantizer, coder, lenet, update_for):
    update = update_for(lenet)
    one, other = (make_codec(sparsifier, quantizer, coder) for _ in range(2))
    assert one.encode(update, lenet, seed=5) == other.encode(update, lenet, seed=5)
    assert one.encode(update, lenet, seed=5) == one.encode(update, lenet, seed=5)


@every_combination
def test_numpy_settings_do_not_matter(sparsifier, quantizer, coder, make_layout):
    layout = make_layout([(300,)])
    codec = make_codec(sparsifier, quantizer, coder)
    for special in ("wide", "subnormal", "largest"):
        update = SPECIAL[special].astype(np.float32)
        expected = codec.encode(update, layout, memory={})
        with np.errstate(all="raise"):
            assert codec.encode(update, layout) == expected
            decode(expected, layout)
            assert np.geterr()["over"] == "raise"


@every_combination
def test_random_states_are_left_alone(sparsifier, quantizer, coder, mixed, update_for):
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    decode(make_codec(sparsifier, quantizer, coder).encode(update_for(mixed), mixed, seed=9))
    assert random.getstate() == states[0]
    np.testing.assert_equal(np.random.get_state(), states[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


@every_decoder
def test_coding_never_costs(sparsifier, quantizer, coder, lenet, mixed):
    for layout, noise in product((lenet, mixed), (False, True)):
        draw = np.random.default_rng(0).integers(0, 1 << 32, layout.size, dtype=np.uint32)
        update = np.zeros(layout.size, dtype=np.float32)
        if noise:  # random bits, less those of NaN and infinity
            update = (draw & 0xBFFFFFFF).view(np.float32)
        sizes = [
            len(make_codec(sparsifier, quantizer, c).encode(update, layout)) for c in ("raw", coder)
        ]
        # Shorter streams have shorter lengths before them: only the padding may differ.
        assert sizes[1] <= sizes[0]
        if not noise and layout is lenet and coder != "raw" and sparsifier == "dense":
            assert sizes[1] < sizes[0] / 10


def test_what_is_around_the_values_is_small(lenet, make_layout):
    update = np.zeros(lenet.size, dtype=np.float32)
    assert len(make_codec("dense", "int8", "raw").encode(update, lenet)) <= lenet.size + 120
    assert len(make_codec("dense", "float32", "raw").encode(update, lenet)) <= 4 * lenet.size + 80
    block = [(512, 512, 3, 3), (512,), (512,), (512,), (512,), ()]
    resnet = make_layout(block * 20 + [(10, 512), (10,)])
    assert len(resnet) == 122
    from compression.header import shape_table

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


def test_a_payload_may_lie_anywhere_in_a_message(mixed, update_for):
    payload = make_codec("dense", "float32", "raw").encode(update_for(mixed), mixed)
    for shift in range(8):
        view = memoryview(bytearray(shift) + payload)[shift:]
        vector, _ = decode(view, mixed)
        assert vector.flags.aligned
        np.testing.assert_array_equal(vector, update_for(mixed))


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


@every_decoder
def test_describe(sparsifier, quantizer, coder, mixed, update_for):
    payload = make_codec(sparsifier, quantizer, coder).encode(update_for(mixed), mixed)
    assert describe(payload) == Description(
        1,
        sparsifier,
        quantizer,
        coder,
        mixed.size,
        len(decode_update(payload).values),
        len(mixed),
        len(payload),
    )


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
def test_draws_of_two_stages_are_apart(seed):
    one, other = Rng(seed, 0).generator, Rng(seed, 1).generator
    assert (one.random(8) != other.random(8)).all()


def test_the_format_by_hand():
    """A payload written without the package, from docs/payload.md alone."""
    values = [1.0, -2.5, 1e-3]
    body = b"EWP\x01" + bytes([0, 0, 0, 1])  # dense, float32, raw, with names
    body += bytes([2, 2, 1, 2, 0])  # two tensors: (1, 2) and ()
    names = bytes([0, 1]) + b"w" + bytes([7, 4]) + b"step"
    body += bytes([len(names)]) + names
    body += bytes([0, 0, 1, 12 << 1])  # everything, no parameters, one stream of 12 bytes as it is
    body += bytes(-len(body) % 8) + struct.pack("<3f", *values)
    payload = body + struct.pack("<Q", xxh3_64_intdigest(body))
    vector, layout = decode(payload)
    assert vector.tolist() == [np.float32(v) for v in values]
    assert layout == Layout(("w", "step"), ((1, 2), ()), ("float32", "int64"))
    codec = make_codec("dense", "float32", "raw")
    assert codec.encode(np.array(values, dtype=np.float32), layout, names=True) == payload


@pytest.mark.parametrize("stage", ["quantizer", "coder"])
def test_decoding_needs_no_options(stage):
    for name in methods(stage):
        assert isinstance(vars(get(stage, name))["decode"], classmethod | staticmethod)
