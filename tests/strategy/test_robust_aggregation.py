"""Medians and trimmed means equal numpy's and scipy's, and limit the effect of one node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from edgewire.strategy.robust_aggregation import RobustMean

SIZE = 40


def updates(seed, nodes, density):
    """Return (indices or None, values) of each node, and a table with NaN for entries not sent."""
    draw = np.random.default_rng(seed)
    found, table = [], np.full((nodes, SIZE), np.nan, np.float32)
    for row in table:
        sent = np.flatnonzero(draw.random(SIZE) < density).astype(np.uint32)
        values = draw.normal(size=len(sent)).astype(np.float32)
        row[sent] = values
        found.append((None if len(sent) == SIZE else sent, values))
    return found, table


@given(
    seed=st.integers(0, 999),
    nodes=st.integers(1, 7),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
@pytest.mark.parametrize("absent", ["zero", "left_out"])
def test_the_median_is_numpys(seed, nodes, density, absent):
    found, table = updates(seed, nodes, density)
    robust = RobustMean(SIZE, "median", absent=absent)
    for _ in range(2):  # the second pass keeps nothing of the first
        for indices, values in found:
            robust.add(indices, values, 3.0)
        indices, values = robust.take()
        whole = np.zeros(SIZE, np.float32)
        whole[slice(None) if indices is None else indices] = values
        if absent == "zero":
            expected = np.median(np.nan_to_num(table), axis=0)
        else:
            there = (~np.isnan(table)).sum(axis=0) >= max(nodes / 2, min(3, nodes))
            assert indices is None or set(indices) == set(np.flatnonzero(there))
            expected = np.zeros(SIZE)
            expected[there] = np.nanmedian(table[:, there], axis=0)
        np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-7)


@given(st.integers(0, 999), st.integers(1, 12))
def test_the_trimmed_mean_is_scipys(seed, nodes):
    found, table = updates(seed, nodes, 1.0)
    robust = RobustMean(SIZE, "trimmed", trim=0.2)
    for indices, values in found:
        robust.add(indices, values)
    indices, values = robust.take()
    assert indices is None
    np.testing.assert_allclose(values, trim_mean(table, 0.2, axis=0), rtol=1e-5, atol=1e-6)


@given(st.integers(0, 999), st.integers(3, 12), st.floats(0.05, 1.0), st.data())
@pytest.mark.parametrize("kind", ["median", "trimmed"])
@pytest.mark.parametrize("absent", ["zero", "left_out"])
def test_one_node_cannot_leave_the_range_of_sparse_updates(
    absent, kind, seed, nodes, density, data
):
    """The bad node sends what it likes, also entries that few others send, and 0 is no news."""
    found, table = updates(seed, nodes - 1, density)
    sent = np.array(sorted(data.draw(st.sets(st.integers(0, SIZE - 1), min_size=1))), np.uint32)
    huge = np.full(len(sent), data.draw(st.sampled_from([3e38, -3e38])), np.float32)
    robust = RobustMean(SIZE, kind, trim=0.34, absent=absent)
    for indices, values in [*found, (sent, huge)]:
        robust.add(indices, values)
    indices, values = robust.take()
    whole = np.zeros(SIZE, np.float32)
    whole[slice(None) if indices is None else indices] = values
    honest = np.nan_to_num(table)
    assert (whole <= np.maximum(honest.max(axis=0), 0)).all()
    assert (whole >= np.minimum(honest.min(axis=0), 0)).all()
