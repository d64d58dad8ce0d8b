"""Tests of only int8 and float16; test_combinations.py tests all quantizers."""

import numpy as np
import pytest

from compression.base import PayloadError, Rng, TensorSlices
from compression.quantizers.float16 import Float16
from compression.quantizers.int8 import Int8
from compression.quantizers.scaling import BLOCK, blocks, magnitudes

RNG = Rng(0, 1)
# Codec.encode and Codec.decode suppress these warnings for all methods.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
MOST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)


def test_blocks_cover_everything_once():
    segments = np.cumsum([0, 3, 0, BLOCK, 2 * BLOCK + 5, 0, 1, BLOCK - 9, 0])
    covered = np.zeros(segments[-1], dtype=int)
    for block in blocks(segments):
        assert 0 < block.whole.stop - block.whole.start <= BLOCK
        for tensor, whole, here in block.pieces:
            covered[whole] += 1
            assert segments[tensor] <= whole.start < whole.stop <= segments[tensor + 1]
            assert whole.start - here.start == block.whole.start
            assert whole.stop - here.stop == block.whole.start
    assert (covered == 1).all()


def test_magnitudes_across_blocks():
    segments = np.cumsum([0, 10, 0, 3 * BLOCK, 7])
    values = np.random.default_rng(0).normal(size=segments[-1]).astype(np.float32)
    values[BLOCK + 3] = -50
    expected = [np.abs(values[:10]).max(), 0, 50, np.abs(values[-7:]).max()]
    assert magnitudes(values, segments).tolist() == pytest.approx(expected, rel=0)


def test_int8_is_the_plain_formula():
    segments = np.array([0, 40_000, 40_000, 150_000])
    values = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    scales, levels = Int8().encode(values, TensorSlices(segments), {}, RNG)
    for start, stop, scale in zip(segments[:-1], segments[1:], scales, strict=True):
        part = values[start:stop]
        assert scale == (np.abs(part).max() / np.float32(127) if len(part) else 0)
        if len(part):
            np.testing.assert_array_equal(levels[start:stop], np.rint(part / scale))


@pytest.mark.parametrize("largest", [0, LEAST, 1.5 * 127 * LEAST, 1e-40, 1e-36, 1, 3e38, MOST])
@pytest.mark.parametrize("quantizer", [Int8(), Float16()])
def test_extreme_scales(quantizer, largest):
    values = (np.linspace(-1, 1, 255) * largest).astype(np.float32)
    parts = TensorSlices(np.array([0, len(values)]))
    streams = quantizer.encode(values, parts, {}, RNG)
    decoded = quantizer.decode((), streams, parts)
    error = np.abs(decoded.astype(np.float64) - values)
    assert (error <= quantizer.error_bound(values, parts)).all()
    # The smallest values have the spacing of float32 itself; others keep 7 bits.
    assert error.max() <= max(largest / 250, LEAST)


@pytest.mark.parametrize("scale", [-1.0, -0.0, np.nan, np.inf, MOST / 126.9])
def test_int8_refuses_bad_scales(scale):
    streams = (np.array([scale], dtype="<f4"), np.array([0, 1], dtype="i1"))
    with pytest.raises(PayloadError, match="scale"):
        Int8.decode((), streams, TensorSlices(np.array([0, 2])))


def test_int8_refuses_minus_128():
    streams = (np.ones(1, dtype="<f4"), np.array([0, -128], dtype="i1"))
    with pytest.raises(PayloadError, match="-128"):
        Int8.decode((), streams, TensorSlices(np.array([0, 2])))


@pytest.mark.parametrize("value", [1.001, -2, np.inf, np.nan])
def test_float16_refuses_more_than_its_scale(value):
    streams = (np.ones(1, dtype="<f4"), np.array([0, value], dtype="<f2"))
    with pytest.raises(PayloadError, match="beyond its scale"):
        Float16.decode((), streams, TensorSlices(np.array([0, 2])))
