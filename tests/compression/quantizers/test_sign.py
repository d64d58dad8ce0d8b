"""1-bit SGD: the formula, means, hostile streams."""

import numpy as np
import pytest

from edgewire.compression.base import Rng, TensorSlices
from edgewire.compression.quantizers.scaling import BLOCK
from edgewire.compression.quantizers.sign import Sign
from tests.compression.quantizers.values import LEAST, MOST, normal, parts_of, whole


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
    found = Sign("column").encode(values, TensorSlices(parts.segments), {}, Rng(0, 1))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        Sign.decode((1,), found, TensorSlices(parts.segments)), Sign.decode((0,), expected, parts)
    )


@pytest.mark.parametrize("value", [MOST, -MOST, 3e38, LEAST, -LEAST, -0.0])
def test_sign_means_at_the_ends_of_float32(value):
    values = np.full(1000, value, dtype=np.float32)
    streams = Sign().encode(values, whole(values), {}, Rng(0, 1))
    np.testing.assert_array_equal(Sign.decode((0,), streams, whole(values)), values)
    assert not np.signbit(streams[0]).any() or value < 0
