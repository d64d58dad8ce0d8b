"""Tests of bfloat16, int4, QSGD, TernGrad and 1-bit SGD together."""

import numpy as np
import pytest

from compression.base import PayloadError, Rng
from compression.quantizers.bfloat16 import BFloat16
from compression.quantizers.int4 import Int4
from compression.quantizers.qsgd import Qsgd
from compression.quantizers.scaling import BLOCK
from compression.quantizers.sign import Sign
from compression.quantizers.ternary import Ternary
from tests.compression.quantizers.values import SPECIAL, normal, parts_of, whole

# Codec.encode and Codec.decode suppress these warnings for all methods.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


QUANTIZERS = [
    BFloat16(), Int4(), Int4(16), Int4(21), Int4(65536), Qsgd(), Qsgd(127, 33, "l2"),
    Qsgd(1, 16, "l2"), Qsgd(127, 16), Ternary(), Ternary(0.0), Ternary(0.3), Sign(), Sign("column"),
]  # fmt: skip
every_quantizer = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)

SPECIAL_OR_LONG = {**SPECIAL, "long": np.random.default_rng(0).standard_t(3, size=3 * BLOCK + 7)}


@every_quantizer
@pytest.mark.parametrize("special", SPECIAL_OR_LONG)
def test_error_stays_within_the_bound(quantizer, special):
    values = SPECIAL_OR_LONG[special].astype(np.float32)
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
def test_bounds_scale_with_the_values(quantizer):
    """Scaling by a power of two changes exponents only, so the bounds scale too."""
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
def test_params_that_no_encoder_produces(quantizer, wrong):
    for params in wrong:
        with pytest.raises(PayloadError):
            quantizer.specs(params, parts_of((100,)))
