"""Vectors for tests of selections, and how their results are compared."""

from functools import cache

import numpy as np

from edgewire.compression.scatter import find

N = 300_000


def expect(found, expected, what=""):
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, expected, err_msg=what)


@cache
def heavy():
    draw = np.random.default_rng(5)
    scales = np.repeat([1, 1e-3], [N // 3, N - N // 3])
    return (draw.standard_t(3, N) * scales).astype(np.float32)


def widened(cut, indices, values, exact):
    """Join selected trained entries and all exact entries, as the decoder does."""
    borders = find(indices, cut.borders)
    return cut.widen_indices(indices, borders), cut.merge(values, exact, borders)
