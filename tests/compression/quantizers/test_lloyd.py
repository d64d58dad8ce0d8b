"""Lloyd: its sizes are optimal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import Rng
from edgewire.compression.quantizers.lloyd import Lloyd
from edgewire.compression.quantizers.scaling import BLOCK
from tests.compression.quantizers.values import normal, parts_of

# The least squared error of a Gaussian's quantizer with 2, 4, 8 and 16 levels: Max 1960,
# "Quantizing for minimum distortion", table I.
LEAST = {1: 0.3634, 2: 0.1175, 4: 0.03454, 8: 0.009497}


def both(values, magnitudes):
    quantizer, parts = Lloyd(magnitudes), parts_of((len(values),))
    streams = quantizer.encode(values, parts, {}, Rng(0, 1))
    return streams, Lloyd.decode(quantizer.params(), streams, parts)


@pytest.mark.parametrize("magnitudes", LEAST)
def test_the_error_of_gaussian_values_is_the_least_possible(magnitudes):
    values = normal(4 * BLOCK + 3)
    _, decoded = both(values, magnitudes)
    error = np.sum((values - decoded) ** 2, dtype=float) / np.sum(values**2, dtype=float)
    assert error == pytest.approx(LEAST[magnitudes], rel=0.02)


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=60),
    st.sampled_from([1, 2, 4, 8]),
)
def test_sizes_are_means_and_each_value_has_the_nearest(numbers, magnitudes):
    values = np.array(numbers, dtype=np.float32)
    streams, decoded = both(values, magnitudes)
    sizes = streams[0].astype(float)
    np.testing.assert_array_equal(np.signbit(decoded), np.signbit(values))
    for size in set(np.abs(decoded).tolist()):
        group = np.abs(values[np.abs(decoded) == size]).astype(float)
        assert size == pytest.approx(group.mean(), rel=1e-5)
    # A bin of the histogram is up to 1/128 wide, so a value near a bound may have the other size.
    exact = np.abs(values).astype(float)
    nearest = np.abs(exact[:, None] - sizes).min(axis=1)
    assert (np.abs(exact - np.abs(decoded)) <= nearest + exact / 64 + 1e-38).all()
