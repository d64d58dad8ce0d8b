"""EDEN: the paper's figures, DRIVE with one bit, exact levels, and hostile payloads."""

import numpy as np
import pytest

from edgewire.compression.base import Rng
from edgewire.compression.quantizers.drive import Drive
from edgewire.compression.quantizers.eden import UNIT, Eden, levels_of
from edgewire.compression.quantizers.rotation import CHUNK
from tests.compression.quantizers.values import normal, parts_of

# The paper's squared errors for large chunks, and those of the best scale (Max 1960, table I).
PAPER = {1: 0.571, 2: 0.133, 3: 0.0358, 4: 0.0096}
BEST = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}


def round_trip(values, quantizer, seed=0):
    parts = parts_of((len(values),))
    return quantizer.decode(
        quantizer.params(), quantizer.encode(values, parts, {}, Rng(seed, 1)), parts
    )


@pytest.mark.parametrize("bits", PAPER)
@pytest.mark.parametrize(("scale", "errors"), [("unbiased", PAPER), ("least", BEST)])
def test_the_errors_are_those_of_the_papers(bits, scale, errors):
    values = normal(32 * CHUNK) ** 3  # far from normal, until it is rotated
    decoded = round_trip(values, Eden(bits, scale))
    error = np.sum((values - decoded) ** 2, dtype=float) / np.sum(values**2, dtype=float)
    assert error == pytest.approx(errors[bits], rel=0.05)
    if scale == "unbiased":
        product = np.dot(values.astype(float), decoded.astype(float))
        assert product == pytest.approx(
            np.dot(values.astype(float), values.astype(float)), rel=1e-5
        )


@pytest.mark.parametrize("scale", ["unbiased", "least"])
def test_one_bit_is_drive(scale):
    values = normal(2 * CHUNK + 77)
    drive, eden = round_trip(values, Drive(scale)), round_trip(values, Eden(1, scale))
    np.testing.assert_allclose(eden, drive, rtol=1e-5)


@pytest.mark.parametrize("bits", PAPER)
def test_sums_of_levels_are_exact(bits):
    levels = levels_of(bits)
    np.testing.assert_array_equal(levels, np.rint(levels))
    np.testing.assert_array_equal(levels, -levels[::-1])
    assert (np.diff(levels) > 0).all()
    assert levels[-1] * CHUNK < 2**24  # float32 has all integers up to here
    assert 2.5 < levels_of(4)[-1] / UNIT < 3


@pytest.mark.parametrize("bits", PAPER)
def test_the_mean_of_many_seeds_has_little_error(bits):
    values = normal(600)
    mean = np.mean([round_trip(values, Eden(bits), seed) for seed in range(200)], axis=0)
    assert np.sum((mean - values) ** 2) / np.sum(values**2) < 2 * PAPER[bits] / 200 + 1e-4
