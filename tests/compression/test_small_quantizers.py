"""bfloat16, int4, QSGD, TernGrad and 1-bit SGD: formulas, ends of float32, hostile streams."""

import numpy as np
import pytest
import torch

from compression.quantizers.bfloat16 import BFloat16
from compression.quantizers.int4 import Int4
from compression.quantizers.qsgd import Qsgd
from compression.quantizers.scaling import BLOCK
from compression.quantizers.sign import Sign
from compression.quantizers.ternary import Ternary
from compression.stages import Parts, PayloadError, Rng

# Codec.encode and decode see to this for all methods.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
MOST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)

QUANTIZERS = [
    BFloat16(), Int4(), Int4(16), Int4(21), Int4(65536), Qsgd(), Qsgd(127, 33, "l2"),
    Qsgd(1, 16, "l2"), Qsgd(127, 16), Ternary(), Ternary(0.0), Ternary(0.3), Sign(), Sign("column"),
]  # fmt: skip
every_quantizer = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)

SPECIAL = {
    "empty": np.zeros(0),
    "one": np.array([0.1]),
    "zeros": np.zeros(300),
    "negative zeros": -np.zeros(300),
    "all negative": -np.linspace(1e-3, 1, 300),
    "all equal": np.full(300, 0.3),
    "subnormal": np.linspace(-1e-40, 1e-40, 300),
    "smallest": np.full(300, LEAST),
    "huge": np.linspace(-3e38, 3e38, 300),
    "largest": np.full(300, MOST),
    "wide": np.geomspace(1e-45, 3e38, 300),
    "long": np.random.default_rng(0).standard_t(3, size=3 * BLOCK + 7),
}


def parts_of(*shapes: tuple[int, ...]) -> Parts:
    sizes = [int(np.prod(shape)) for shape in shapes]
    return Parts(np.cumsum([0, *sizes]), shapes)


def whole(values: np.ndarray) -> Parts:
    return Parts(np.array([0, len(values)]))


def normal(size: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=size).astype(np.float32)


@every_quantizer
@pytest.mark.parametrize("special", SPECIAL)
def test_error_stays_within_the_bound(quantizer, special):
    values = SPECIAL[special].astype(np.float32)
    n = len(values)
    rows = n // 100
    for parts in (
        whole(values),
        parts_of((n // 3, 3), (n % 3,)),
        parts_of((rows, 100), (n % 100,)),
    ):
        bound = quantizer.error_bound(values, parts)
        assert (bound.dtype, bound.shape) == (np.float64, (n,))
        for seed in range(3):
            streams = quantizer.encode(values, parts, {}, Rng(seed, 1))
            specs = quantizer.specs(quantizer.params(), parts)
            for stream, spec in zip(streams, specs, strict=True):
                assert (stream.dtype, stream.shape) == (spec.dtype, (spec.size,))
                assert stream.flags.c_contiguous
                assert not spec.bound or not len(stream) or stream.max() < spec.bound
            decoded = quantizer.decode(quantizer.params(), streams, parts)
            assert (decoded.dtype, decoded.shape) == (np.float32, (n,))
            assert np.isfinite(decoded).all()
            assert (np.abs(decoded.astype(np.float64) - values) <= bound).all()
            if not values.any():
                assert not decoded.any()


@pytest.mark.parametrize(
    ("quantizer", "expected"),
    [
        (BFloat16(), 2 * 1001),
        (Int4(), 2 * 16 + 501),
        (Int4(17), 2 * 59 + 501),
        (Qsgd(), 4 * 2 + 1001),
        (Ternary(), 4 * 2 + 201),
        (Sign(), 8 * 2 + 126),
        (Sign("column"), 8 * 11 + 126),
    ],
    ids=repr,
)
def test_sizes(quantizer, expected):
    parts = parts_of((10, 100), (1,))
    specs = quantizer.specs(quantizer.params(), parts)
    assert sum(spec.nbytes for spec in specs) == expected


@every_quantizer
def test_errors_shrink_with_the_values(quantizer):
    """A factor of two changes exponents only, so bounds are as tight at all sizes."""
    values = normal(1000)
    bound = quantizer.error_bound(values, whole(values))
    for factor in (2.0**-100, 2.0**100):
        scaled = values * np.float32(factor)
        other = quantizer.error_bound(scaled, whole(values))
        np.testing.assert_allclose(other, bound * factor, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Int4(15), "option block of int4 must be from 16 to 65536, not 15"),
        (lambda: Int4(65537), "option block of int4 must be from 16 to 65536, not 65537"),
        (lambda: Qsgd(levels=0), "option levels of qsgd must be from 1 to 127, not 0"),
        (lambda: Qsgd(levels=128), "option levels of qsgd must be from 1 to 127, not 128"),
        (lambda: Qsgd(bucket=0), "option bucket of qsgd must be from 16 to 65536, not 0"),
        (lambda: Qsgd(norm="l1"), "option norm of qsgd must be max or l2, not 'l1'"),
        (lambda: Ternary(-1.0), "option clip of ternary must be at least 0, not -1"),
        (lambda: Ternary(float("nan")), "option clip of ternary must be at least 0, not nan"),
        (lambda: Sign("row"), "option means of sign must be tensor or column, not 'row'"),
    ],
)
def test_options_out_of_range(make, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("quantizer", "wrong"),
    [
        (BFloat16, [(0,)]),
        (Int4, [(), (0,), (15,), (65537,), (1 << 62,), (64, 0)]),
        (Qsgd, [(), (7,), (0, 512), (128, 512), (7, 0), (7, 15), (7, 1 << 62), (7, 512, 0)]),
        (Ternary, [(2,)]),
        (Sign, [(), (2,), (1 << 62,), (0, 0)]),
    ],
)
def test_params_that_no_encoder_makes(quantizer, wrong):
    for params in wrong:
        with pytest.raises(PayloadError):
            quantizer.specs(params, parts_of((100,)))


# bfloat16


def test_bfloat16_rounds_as_torch_does():
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 1 << 32, 2 * BLOCK + 3, dtype=np.uint32)
    bits[::3] &= 0xFFFF8000  # halfway between two
    bits[:8] = [0, 1 << 31, 1, 0x8000, 0x8001, 0x7F7F7FFF, 0x007FFFFF, 0x80008000]
    values = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    expected = np.clip(expected, -3.3895313892515355e38, 3.3895313892515355e38)
    streams = BFloat16().encode(values, whole(values), {}, Rng(0, 1))
    decoded = BFloat16.decode((), streams, whole(values))
    assert decoded.tobytes() == expected.tobytes()


@pytest.mark.parametrize("sign", [0, 0x8000])
def test_bfloat16_never_becomes_infinite(sign):
    bits = np.arange(0x7F7F0000, 0x7F800000, 77, dtype=np.uint32) | np.uint32(sign << 16)
    (halves,) = BFloat16().encode(bits.view(np.float32), whole(bits), {}, Rng(0, 1))
    assert set(halves.tolist()) == {0x7F7F | sign}


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_bfloat16_refuses_nan_and_infinity(bits):
    halves = np.array([0, 0x7F7F, bits], dtype="<u2")
    with pytest.raises(PayloadError, match="NaN or infinity"):
        BFloat16.decode((), (halves,), whole(halves))


# int4


@pytest.mark.parametrize("block", [16, 64, 77, 65536])
def test_int4_is_the_plain_formula(block):
    values = normal(BLOCK + 1001)
    parts = parts_of((500,), (len(values) - 500,))
    halves, packed = Int4(block).encode(values, parts, {}, Rng(0, 1))
    decoded = Int4.decode((block,), (halves, packed), parts)
    nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1).astype(int)
    levels = np.where(nibbles > 7, nibbles - 16, nibbles)[: len(values)]
    for number, start in enumerate(range(0, len(values), block)):
        part = values[start : start + block]
        most = float(np.abs(part).max() / np.float32(7))
        unit = 2.0 ** (np.floor(np.log2(most)) - 7)  # of a bfloat16 of this size
        scale = np.ceil(most / unit) * unit
        assert halves[number] == np.float32(scale).view(np.uint32) >> 16
        expected = np.rint(part / np.float32(scale))
        np.testing.assert_array_equal(levels[start : start + block], expected)
        np.testing.assert_array_equal(decoded[start : start + block], expected * scale)


@pytest.mark.parametrize(
    ("largest", "bits"), [(7, 0x3F80), (np.nextafter(np.float32(7), 9), 0x3F81)]
)
def test_int4_scales_are_rounded_up(largest, bits):
    values = np.float32([0, -largest])
    halves, _ = Int4().encode(values, whole(values), {}, Rng(0, 1))
    assert halves.tolist() == [bits]


@pytest.mark.parametrize("largest", [LEAST, 100 * LEAST, 1e-40, 1e-36, 1.0, 3e38, MOST])
def test_int4_at_extreme_scales(largest):
    values = (np.linspace(-1, 1, 64) * largest).astype(np.float32)
    streams = Int4().encode(values, whole(values), {}, Rng(0, 1))
    decoded = Int4.decode((64,), streams, whole(values))
    error = np.abs(decoded.astype(np.float64) - values)
    assert error.max() <= max(largest / 13.8, 2.0**-134)  # a scale is a multiple of 2^-133


def hostile_int4(scale=0x3F80, byte=0x11, last=0x01):
    return np.array([scale], dtype="<u2"), np.array([byte, last], dtype="u1")


def test_int4_takes_what_is_right():
    decoded = Int4.decode((64,), hostile_int4(byte=0x97, last=0x0F), parts_of((3,)))
    assert decoded.tolist() == [7, -7, -1]
    top = Int4.decode((64,), hostile_int4(scale=0x7E12, byte=0x97), parts_of((3,)))
    assert np.isfinite(top).all()


@pytest.mark.parametrize("scale", [0x7E13, 0x7F80, 0x7FC0, 0x8000, 0xBF80])
def test_int4_refuses_bad_scales(scale):
    with pytest.raises(PayloadError, match="scale"):
        Int4.decode((64,), hostile_int4(scale=scale), parts_of((3,)))


@pytest.mark.parametrize("byte", [0x08, 0x80, 0x88])
def test_int4_refuses_minus_8(byte):
    with pytest.raises(PayloadError, match="-8"):
        Int4.decode((64,), hostile_int4(byte=byte), parts_of((3,)))


@pytest.mark.parametrize("last", [0x11, 0xF1, 0x81])
def test_int4_refuses_padding(last):
    with pytest.raises(PayloadError, match="padding"):
        Int4.decode((64,), hostile_int4(last=last), parts_of((3,)))
    Int4.decode((64,), hostile_int4(last=0x71), parts_of((4,)))


# QSGD


@pytest.mark.parametrize("scale", [-1.0, -0.0, np.nan, np.inf, MOST / 6.9])
def test_qsgd_refuses_bad_scales(scale):
    streams = (np.array([scale], dtype="<f4"), np.array([0, 1], dtype="i1"))
    with pytest.raises(PayloadError, match="scale"):
        Qsgd.decode((7, 16), streams, parts_of((2,)))


@pytest.mark.parametrize(("top", "level"), [(7, 8), (7, -8), (1, 127), (127, -128)])
def test_qsgd_refuses_levels_beyond_the_highest(top, level):
    streams = (np.ones(1, dtype="<f4"), np.array([0, level], dtype="i1"))
    with pytest.raises(PayloadError, match=f"level beyond {top}"):
        Qsgd.decode((top, 16), streams, parts_of((2,)))


@pytest.mark.parametrize("largest", [LEAST, 10 * LEAST, 1e-40, 1e-36, 1.0, 3e38, MOST])
@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("levels", [1, 7, 127])
def test_qsgd_at_extreme_scales(levels, norm, largest):
    """Finite, and no coarser than the formula and float32 allow."""
    values = (np.linspace(-1, 1, 64) * largest).astype(np.float32)
    quantizer = Qsgd(levels, 64, norm)
    streams = quantizer.encode(values, whole(values), {}, Rng(0, 1))
    decoded = quantizer.decode((levels, 64), streams, whole(values)).astype(np.float64)
    length = min(np.linalg.norm(values.astype(np.float64), 2 if norm == "l2" else np.inf), MOST)
    assert np.abs(decoded - values).max() <= 1.001 * max(length / levels, LEAST) + LEAST


# TernGrad


@pytest.mark.parametrize("clip", [0.0, 0.5, 2.5])
def test_ternary_scales_are_those_of_each_tensor(clip):
    values = normal(150_000) * np.repeat(np.float32([1, 100]), [40_000, 110_000])
    parts = parts_of((40_000,), (0, 3), (110_000,))
    scales, packed = Ternary(clip).encode(values, parts, {}, Rng(0, 1))
    decoded = Ternary.decode((), (scales, packed), parts)
    for tensor, scale in zip((0, 2), scales[[0, 2]], strict=True):
        part = slice(*parts.segments[tensor : tensor + 2])
        exact = values[part].astype(np.float64)
        expected = np.abs(exact).max()
        if clip:
            expected = min(expected, clip * np.sqrt(np.mean(exact**2)))
        assert scale == pytest.approx(expected, rel=1e-6)
        assert set(np.unique(decoded[part])) == {-scale, 0, scale}
        sent = decoded[part] != 0
        np.testing.assert_array_equal(np.sign(decoded[part][sent]), np.sign(exact[sent]))
        assert sent[np.abs(exact) >= expected].all()
    assert scales[1] == 0


def test_ternary_clips_no_tensor_away():
    """About its mean, one entry has no deviation; about 0 it has."""
    values = np.float32([0.5, -2, 3, 3, 3])
    parts = parts_of((), (1,), (3,))
    streams = Ternary().encode(values, parts, {}, Rng(0, 1))
    np.testing.assert_array_equal(Ternary.decode((), streams, parts), values)


def test_ternary_packing_by_hand():
    parts = parts_of((6,))
    values = np.float32([1, -1, 0, 1, 1, -1])
    scales, packed = Ternary(0.0).encode(values, parts, {}, Rng(0, 1))
    last = 0 + 3 + 9 + 27 + 81
    assert packed.tolist() == [2 * 1 + 0 * 3 + 1 * 9 + 2 * 27 + 2 * 81, last]
    np.testing.assert_array_equal(Ternary.decode((), (scales, packed), parts), values)


@pytest.mark.parametrize("size", [1, 5, 65_534, 65_535, 65_536, 200_003])
def test_ternary_packing_of_any_size(size):
    values = np.random.default_rng(size).integers(-1, 2, size).astype(np.float32)
    values[-1] = 1
    streams = Ternary(0.0).encode(values, whole(values), {}, Rng(0, 1))
    np.testing.assert_array_equal(Ternary.decode((), streams, whole(values)), values)


@pytest.mark.parametrize("byte", [243, 255])
def test_ternary_refuses_bytes_without_meaning(byte):
    streams = (np.ones(1, dtype="<f4"), np.array([242, byte], dtype="u1"))
    with pytest.raises(PayloadError, match="base-3"):
        Ternary.decode((), streams, parts_of((10,)))


@pytest.mark.parametrize("byte", [0, 121 - 81, 121 + 3, 242])
def test_ternary_refuses_padding(byte):
    streams = (np.ones(1, dtype="<f4"), np.array([byte], dtype="u1"))
    with pytest.raises(PayloadError, match="padding"):
        Ternary.decode((), streams, parts_of((1,)))


@pytest.mark.parametrize("scale", [-1.0, -0.0, np.nan, np.inf])
def test_ternary_refuses_bad_scales(scale):
    streams = (np.array([scale], dtype="<f4"), np.array([121], dtype="u1"))
    with pytest.raises(PayloadError, match="scale"):
        Ternary.decode((), streams, parts_of((5,)))


# 1-bit SGD


def side_means(part: np.ndarray) -> np.ndarray:
    exact = part.astype(np.float64)
    low, high = exact[exact < 0], exact[exact >= 0]
    return np.where(exact < 0, low.mean() if len(low) else 0, high.mean() if len(high) else 0)


COLUMNS = [
    ((7, 64), 7), ((7, 63), 1), ((448,), 1), ((), 1), ((3, 4, 4, 4), 3), ((4, 9), 1),
    ((0, 100), 1), ((100, 0), 1), ((2, BLOCK + 5), 2), ((BLOCK // 64 + 3, 64), BLOCK // 64 + 3),
    ((1, 3 * BLOCK), 1),
]  # fmt: skip


@pytest.mark.parametrize("means", ["tensor", "column"])
def test_sign_is_the_plain_formula(means):
    parts = parts_of(*(shape for shape, _ in COLUMNS))
    values = normal(int(parts.segments[-1])) + np.float32(0.3)
    streams = Sign(means).encode(values, parts, {}, Rng(0, 1))
    params = Sign(means).params()
    decoded = Sign.decode(params, streams, parts)
    groups = [groups if means == "column" else 1 for _, groups in COLUMNS]
    assert len(streams[0]) == 2 * sum(groups)
    for number, start, stop in zip(groups, parts.segments, parts.segments[1:], strict=False):
        if stop > start:
            for part, found in zip(
                values[start:stop].reshape(number, -1),
                decoded[start:stop].reshape(number, -1),
                strict=True,
            ):
                np.testing.assert_allclose(found, side_means(part), rtol=1e-6)
    np.testing.assert_array_equal(decoded >= 0, values >= 0)


def test_sign_of_selected_values_has_means_of_tensors():
    parts = parts_of((10, 100), (5,))
    values = normal(1005)
    expected = Sign("tensor").encode(values, parts, {}, Rng(0, 1))
    found = Sign("column").encode(values, Parts(parts.segments), {}, Rng(0, 1))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        Sign.decode((1,), found, Parts(parts.segments)), Sign.decode((0,), expected, parts)
    )


def test_sign_by_hand():
    parts = parts_of((5,), (5,))
    values = np.float32([1, -1, 3, -3, -5, 0, -0.0, 2, -4, 6])
    means, packed = Sign().encode(values, parts, {}, Rng(0, 1))
    assert means.tolist() == [-3, -4, 2, 2]
    assert packed.tolist() == [0b11100101, 0b10]


@pytest.mark.parametrize("value", [MOST, -MOST, 3e38, LEAST, -LEAST, -0.0])
def test_sign_means_at_the_ends_of_float32(value):
    values = np.full(1000, value, dtype=np.float32)
    streams = Sign().encode(values, whole(values), {}, Rng(0, 1))
    np.testing.assert_array_equal(Sign.decode((0,), streams, whole(values)), values)
    assert not np.signbit(streams[0]).any() or value < 0


def test_sign_needs_feedback():
    assert Sign().feedback
    assert not Sign().unbiased


@pytest.mark.parametrize(
    "means",
    [(1, 1), (-1, -1), (-np.inf, 1), (-1, np.inf), (np.nan, 1), (-1, np.nan), (LEAST, 1)],
)
def test_sign_refuses_bad_means(means):
    streams = (np.array(means, dtype="<f4"), np.array([0b01], dtype="u1"))
    with pytest.raises(PayloadError, match="mean"):
        Sign.decode((0,), streams, parts_of((2,)))


@pytest.mark.parametrize("last", [0b100, 0b10000000, 0b11111101])
def test_sign_refuses_padding(last):
    streams = (np.array([-1, 1], dtype="<f4"), np.array([last], dtype="u1"))
    with pytest.raises(PayloadError, match="padding"):
        Sign.decode((0,), streams, parts_of((2,)))
