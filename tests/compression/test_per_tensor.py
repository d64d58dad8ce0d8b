"""The largest entries of each tensor, compared with a brute-force search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.per_tensor import largest_of_each
from edgewire.compression.selection import TINY
from tests.compression.test_selection import brute, vectors
from tests.compression.vectors import expect


def of_each(values, segments, counts):
    parts = zip(segments[:-1], segments[1:], counts, strict=True)
    return np.concatenate([start + brute(values[start:stop], k) for start, stop, k in parts])


@given(values=vectors, data=st.data())
def test_largest_of_each(values, data):
    inner = data.draw(st.lists(st.integers(0, len(values)), max_size=5).map(sorted))
    segments = np.array([0, *inner, len(values)], dtype=np.int64)
    sizes = np.diff(segments)
    counts = np.array([data.draw(st.integers(0, int(size))) for size in sizes], dtype=np.int64)
    expect(largest_of_each(values, segments, counts), of_each(values, segments, counts))


@pytest.mark.parametrize("levels", [0, 2, 40])
@pytest.mark.parametrize(
    "sizes",
    [
        [5, TINY, TINY + 1, 1, 30],  # small tensors on both sides of a large one
        [3 * TINY, 7, 2 * TINY],  # one small tensor: not worth grouping
        [40, 0, 900, 2],
        [9 * TINY],
    ],
)
def test_small_and_large_tensors(sizes, levels):
    """With `levels` 0 no two magnitudes are equal; with `levels` 2 nearly all are equal."""
    random = np.random.default_rng(levels)
    values = random.standard_normal(sum(sizes)).astype(np.float32)
    values = np.rint(levels * values).astype(np.float32) if levels else values
    segments = np.cumsum([0, *sizes])
    for share in (0.0, 0.01, 0.3, 1.0):
        counts = np.array([min(size, max(1, int(share * size))) for size in sizes])
        counts[0] = counts[0] if share else 0
        expect(largest_of_each(values, segments, counts), of_each(values, segments, counts))


def test_a_count_beyond_the_tensor_is_refused():
    values, segments = np.zeros(10, np.float32), np.array([0, 4, 10])
    with pytest.raises(ValueError, match="cannot select 5 of 4"):
        largest_of_each(values, segments, np.array([5, 1]))
