"""What holds for every quantizer: its error bound, sizes, memory and random draws."""

from itertools import pairwise

import numpy as np
import pytest

from edgewire.compression.base import PayloadError
from edgewire.compression.quantizers.bfloat16 import BFloat16
from edgewire.compression.quantizers.drive import Drive
from edgewire.compression.quantizers.eden import Eden
from edgewire.compression.quantizers.float16 import Float16
from edgewire.compression.quantizers.int4 import Int4
from edgewire.compression.quantizers.int8 import Int8
from edgewire.compression.quantizers.lloyd import Lloyd
from edgewire.compression.quantizers.powersgd import PowerSgd
from edgewire.compression.quantizers.qsgd import Qsgd
from edgewire.compression.quantizers.scaling import BLOCK
from edgewire.compression.quantizers.sign import Sign
from edgewire.compression.quantizers.ternary import Ternary
from edgewire.compression.registry import get, quantizer_of
from edgewire.compression.registry import names as methods
from tests.compression.quantizers.bounds import error_bound
from tests.compression.quantizers.values import (
    LEAST,
    MOST,
    SPECIAL,
    normal,
    parts_of,
    selected,
    step_of,
    whole,
)

QUANTIZERS = [
    BFloat16(), Float16(), Int8(), Int4(), Int4(16), Int4(21), Int4(65536), Qsgd(),
    Qsgd(127, 33, "l2"), Qsgd(1, 16, "l2"), Qsgd(127, 16), Ternary(), Ternary(0.0), Ternary(0.3),
    Sign(), Sign("column"), Drive(), Drive("least"), PowerSgd(1), PowerSgd(2), PowerSgd(6),
]  # fmt: skip
every_quantizer = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)
draw = np.random.default_rng(0)
VALUES = {
    **SPECIAL,
    "one of many": np.eye(1, 600, 34)[0],
    "most, signs": MOST * draw.choice([-1, 1], 600),
    "extremes": np.resize([MOST, LEAST, -1.0, 0.0], 600),
    "wide, shuffled": draw.permutation(np.geomspace(1e-45, 3e38, 600) * np.resize([1, -1], 600)),
    "normal": draw.normal(size=600),
    "long": draw.standard_t(3, size=3 * BLOCK + 7),
}


@pytest.mark.few(121)
@every_quantizer
@pytest.mark.parametrize("name", VALUES)
def test_errors_stay_within_the_bound(quantizer, name):
    values = VALUES[name].astype(np.float32)
    n, side = len(values), int(len(values) ** 0.5)
    for parts in (
        whole(values),
        parts_of((n // 3, 3), (n % 3,)),
        parts_of((n // 100, 100), (n % 100,)),
        parts_of((side, side), (0, 3), (n - side * side,)),
        selected(0, n // 3, n - n // 3),
    ):
        bound = error_bound(quantizer, values, parts)
        assert (bound.dtype, bound.shape) == (np.float64, (n,))
        memory = {}
        for seed in range(1 if n > BLOCK else 3):
            streams = quantizer.encode(values, parts, step_of(seed, memory))
            specs = quantizer.specs(parts)
            for stream, spec in zip(streams, specs, strict=True):
                assert (stream.dtype, stream.shape) == (spec.dtype, (spec.size,))
                assert stream.flags.c_contiguous
                assert not spec.bound or not len(stream) or stream.max() < spec.bound
            decoded = quantizer_of(type(quantizer), quantizer.params()).decode(streams, parts)
            assert (decoded.dtype, decoded.shape) == (np.float32, (n,))
            assert np.isfinite(decoded).all()
            assert (np.abs(decoded.astype(np.float64) - values) <= bound).all()
            assert decoded.any() <= values.any()
        assert all(np.isfinite(array).all() for array in memory.values())


@pytest.mark.parametrize("largest", [0, LEAST, 10 * LEAST, 1e-40, 1e-36, 1, 3e38, MOST])
@pytest.mark.parametrize(
    ("quantizer", "share", "least"),
    [
        (Int8(), 1 / 250, LEAST),  # the smallest values have the spacing of float32 itself
        (Float16(), 1 / 250, LEAST),
        (Int4(), 1 / 13.8, 2.0**-134),  # a scale is a multiple of 2^-133
        *((Qsgd(levels, 64, "max"), 1.001 / levels, 2 * LEAST) for levels in (1, 7, 127)),
        *((Qsgd(levels, 64, "l2"), 5.01 / levels, 2 * LEAST) for levels in (1, 7, 127)),
    ],
    ids=repr,
)
def test_errors_are_a_share_of_the_largest_value_at_any_scale(quantizer, share, least, largest):
    values = (np.linspace(-1, 1, 64) * largest).astype(np.float32)
    streams = quantizer.encode(values, whole(values), step_of(0))
    decoded = quantizer.decode(streams, whole(values))
    assert np.abs(decoded.astype(np.float64) - values).max() <= max(largest * share, least)


@pytest.mark.parametrize(
    "quantizer", [Qsgd(), Ternary(), Drive(), PowerSgd()], ids=lambda each: each.name
)
def test_draws_depend_on_the_seed_only(quantizer):
    values, parts = normal(10_000), parts_of((100, 100))
    before = values.copy()
    one, same, other = (quantizer.encode(values, parts, step_of(seed)) for seed in (1, 1, 2))
    for left, right in zip(one, same, strict=True):
        np.testing.assert_array_equal(left, right)
    assert min((a != b).mean() for a, b in zip(one[1:], other[1:], strict=True) if len(a)) > 0.2
    np.testing.assert_array_equal(values, before)


def test_which_methods_need_feedback():
    assert {each.name for each in QUANTIZERS if each.feedback} == {"sign", "powersgd"}


@pytest.mark.parametrize(
    ("quantizer", "wrong"),
    [
        (BFloat16, [(0,)]),
        (Int4, [(), (0,), (15,), (65537,), (1 << 62,), (64, 0)]),
        (Qsgd, [(), (7,), (0, 512), (128, 512), (7, 0), (7, 15), (7, 1 << 62), (7, 512, 0)]),
        (Ternary, [(2,)]),
        (Sign, [(), (2,), (1 << 62,), (0, 0)]),
        (Drive, [(1,)]),
        (Eden, [(), (0,), (5,), (1 << 40,), (2, 2)]),
        (Lloyd, [(), (0,), (3,), (16,), (2, 2)]),
        (PowerSgd, [(), (2, 2), (0,), (65,), (1 << 40,)]),
    ],
)
def test_params_that_no_encoder_produces(quantizer, wrong):
    for params in wrong:
        with pytest.raises(PayloadError, match="has no such"):
            quantizer_of(quantizer, params)


def of(dtype, *values):
    return np.array(values, dtype)


SCALES = (-1.0, -0.0, np.nan, np.inf)
# Quantizer, parameters, number of values; streams with a wrong number; these numbers; the reason.
REFUSED = [
    (BFloat16, (), 3, lambda n: (of("<u2", 0, 0x7F7F, n),), (0x7F80, 0xFF80, 0x7FC0, 0xFFFF),
     "NaN or infinity"),
    (Float16, (), 2, lambda n: (of("<f4", 1), of("<f2", 0, n)), (1.001, -2, np.inf, np.nan),
     "beyond its scale"),
    (Int8, (), 2, lambda n: (of("<f4", n), of("i1", 0, 1)), (*SCALES, MOST / 126.9), "scale"),
    (Int8, (), 2, lambda n: (of("<f4", 1), of("i1", 0, n)), (-128,), "-128"),
    (Int4, (64,), 3, lambda n: (of("<u2", n), of("u1", 0x11, 1)),
     (0x7E13, 0x7F80, 0x7FC0, 0x8000, 0xBF80), "scale"),
    (Int4, (64,), 3, lambda n: (of("<u2", 0x3F80), of("u1", n, 1)), (0x08, 0x80, 0x88), "-8"),
    (Int4, (64,), 3, lambda n: (of("<u2", 0x3F80), of("u1", 0x11, n)), (0x11, 0xF1, 0x81),
     "padding"),
    (Qsgd, (7, 16), 2, lambda n: (of("<f4", n), of("i1", 0, 1)), (*SCALES, MOST / 6.9), "scale"),
    (Qsgd, (7, 16), 2, lambda n: (of("<f4", 1), of("i1", 0, n)), (8, -8), "level beyond 7"),
    (Qsgd, (1, 16), 2, lambda n: (of("<f4", 1), of("i1", 0, n)), (127,), "level beyond 1"),
    (Qsgd, (127, 16), 2, lambda n: (of("<f4", 1), of("i1", 0, n)), (-128,), "level beyond 127"),
    (Ternary, (), 5, lambda n: (of("<f4", n), of("u1", 121)), SCALES, "scale"),
    (Ternary, (), 10, lambda n: (of("<f4", 1), of("u1", 242, n)), (243, 255), "base-3"),
    (Ternary, (), 1, lambda n: (of("<f4", 1), of("u1", n)), (0, 121 - 81, 121 + 3, 242), "padding"),
    (Sign, (0,), 2, lambda n: (of("<f4", *n), of("u1", 1)),
     ((1, 1), (-1, -1), (-np.inf, 1), (-1, np.inf), (np.nan, 1), (-1, np.nan), (LEAST, 1)), "mean"),
    (Sign, (0,), 2, lambda n: (of("<f4", -1, 1), of("u1", n)), (0b100, 0b10000000, 0b11111101),
     "padding"),
    (Drive, (), 5, lambda n: (of("<u8", 7), of("<f4", n), of("u1", 9)), (*SCALES, -np.inf),
     "scale"),
    (Lloyd, (2,), 8, lambda n: (of("<f4", *n), of("u1", 0), of("u1", 0)),
     ((1, 0.5), (-1, 1), (1, np.inf), (np.nan, 1), (-0.0, 1)), "sizes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("quantizer", "params", "size", "streams", "numbers", "match"),
    REFUSED,
    ids=[f"{case[0].name}-{case[-1]}" for case in REFUSED],
)
def test_streams_that_no_encoder_produces(quantizer, params, size, streams, numbers, match):
    for number in numbers:
        with pytest.raises(PayloadError, match=match):
            quantizer.of_params(params).decode(streams(number), selected(size))


@pytest.mark.parametrize("name", methods("quantizer"))
def test_more_bits_make_finer_values(name):
    coarse, values = get("quantizer", name)(), VALUES["normal"].astype(np.float32)
    parts, errors = whole(values), []
    for bits in range(4 if coarse.finer_by(1) else 0):
        finer = coarse.finer(bits)
        streams = finer.encode(values, parts, step_of(3))
        assert [len(s) for s in streams] == [s.size for s in finer.specs(parts)]
        made = finer.decode(streams, parts)
        errors.append(float(np.square(made - values).sum()))
    assert all(fine < 0.5 * rough for rough, fine in pairwise(errors[:3]))
    most = coarse.finer_by(1 << 60)
    assert coarse.finer(most) == coarse.finer(most + 1)
    assert most == 0 or coarse.finer(most) != coarse.finer(most - 1)
    assert coarse.finer_by(1) == min(most, 1)
    assert coarse.finer(0) == coarse
    assert (coarse.finer_by(1) > 0) == (name in ("lloyd", "eden"))
    assert coarse.finer(1 << 60) == coarse.finer(9)
