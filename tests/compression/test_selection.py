"""Exact top-k selections, also of each tensor, compared with a brute-force search."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from edgewire.compression import selection
from edgewire.compression.per_tensor import largest_of_each
from edgewire.compression.sampling import rank
from edgewire.compression.selection import TINY, above, largest, uniform, weighted
from tests.compression.vectors import N, expect, heavy

TINIEST = float(np.finfo(np.float32).smallest_subnormal)

few_values = st.sampled_from([0.0, -0.0, 1.0, -1.0, TINIEST, -3 * TINIEST, 1e-38, 3e38])
any_values = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = npst.arrays(np.float32, st.integers(0, 300), elements=any_values | few_values)
vectors |= npst.arrays(np.float32, st.integers(0, 300), elements=few_values)


def brute(values, k):
    order = np.lexsort((np.arange(len(values)), -np.abs(values.astype(np.float64))))
    return np.sort(order[:k])


@cache
def hard_vectors():
    """Return vectors by name, and their indices sorted by magnitude."""
    draw, x = np.random.default_rng(6), heavy()
    places = np.arange(N)
    found = {
        "heavy tails": x,
        "zeros": 0 * x,
        "all equal": x * 0 - 2,
        "ternary": draw.integers(-1, 2, N).astype(np.float32),
        "99.9 % zeros": np.where(draw.random(N) < 0.001, x, 0),
        "1 % ones": (draw.random(N) < 0.01).astype(np.float32),
        "few levels": np.rint(3 * x),
        "sorted": np.sort(np.abs(x)),
        "reversed": np.sort(np.abs(x))[::-1],
        "one block": np.where(places // 5000 == 7, 100 + x, x),
        **{f"period {p}": np.where(places % p == 0, 100 + x, x) for p in (2, 64, 67, 100, 4096)},
        "period of the sample": np.where(places % round(N ** (1 / 3)) == 0, 100 + x, x),
    }
    return {
        name: (
            np.ascontiguousarray(values, dtype=np.float32),
            np.argsort(-np.abs(values), kind="stable"),
        )
        for name, values in found.items()
    }


@given(values=vectors, share=st.floats(0, 1))
@example(values=np.zeros(0, np.float32), share=0.0)
@example(values=np.zeros(200, np.float32), share=0.5)
def test_largest_is_exact(values, share):
    k = round(share * len(values))
    expect(largest(values, k), brute(values, k))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "BLOCK", 32)
        patch.setattr(selection, "TINY", 4)
        patch.setattr(selection, "DENSE", 4)
        expect(largest(values, k), brute(values, k))


def test_largest_of_hard_vectors():
    for name, (values, order) in hard_vectors().items():
        for k in (0, 1, 17, N // 1000, N // 100, N // 10, N // 4, N - 5, N):
            expect(largest(values, k), np.sort(order[:k]), name)
        for size in (selection.TINY + 1, 5_000, 30_000, selection.BLOCK // 2):
            part = values[:size]
            of_part = np.argsort(-np.abs(part), kind="stable")
            for k in (1, size // 90, size // 5, size // 3, size - 1):
                expect(largest(part, k), np.sort(of_part[:k]), name)


def misleading(low, high, share, size=10_000):
    """Return a sampling function from which wrong bounds of the k-th largest value follow."""
    at = size - rank(size, share, -1)
    assert 0 < size - rank(size, share) < at < size
    found = np.repeat(np.array([low, high], np.int32), (at, size - at))
    return lambda bits: found


@pytest.mark.parametrize("name", ["heavy tails", "few levels", "all equal"])
def test_a_misleading_sample_costs_time_only(monkeypatch, name):
    (values, order), k = hard_vectors()[name], 3000
    expected, kth = np.sort(order[:k]), int(np.abs(values[order[k - 1]]).view(np.int32))
    for below, beyond in itertools.product([-(2**22), -1, 0, 1, 2**22, 2**31], repeat=2):
        low, high = max(kth - below, 0), min(kth + beyond, selection.MOST)
        monkeypatch.setattr(selection, "sample", misleading(low, max(low, high), k / len(values)))
        expect(largest(values, k), expected)


def test_subnormal_numbers_are_distinguished_even_if_flushed_to_zero():
    torch = pytest.importorskip("torch")
    values = (np.arange(1, 501) * TINIEST).astype(np.float32)
    expected = brute(values, 100)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always keeps them")
    try:
        found = largest(values, 100)
    finally:
        torch.set_flush_denormal(False)
    expect(found, expected)


thresholds = st.floats(allow_nan=False) | few_values | any_values.map(abs)


@given(values=vectors, threshold=thresholds, inclusive=st.booleans())
@example(values=np.array([0.1, -0.1], np.float32), threshold=0.1, inclusive=False)
@example(values=np.array([0.3, -0.3], np.float32), threshold=0.3, inclusive=True)
@example(values=np.array([3.4028235e38], np.float32), threshold=3.4028236e38, inclusive=True)
def test_above(values, threshold, inclusive):
    magnitudes = np.abs(values.astype(np.float64))
    expected = magnitudes >= threshold if inclusive else magnitudes > threshold
    expect(above(values, threshold, inclusive), expected.nonzero()[0])
    if len(values):
        equal = float(values[0])
        expect(above(values, equal), (magnitudes > equal).nonzero()[0])
        expect(above(values, equal, inclusive=True), (magnitudes >= equal).nonzero()[0])


def test_above_over_blocks():
    values = heavy()
    expect(above(values, 0.01), (np.abs(values) > 0.01).nonzero()[0])
    with pytest.raises(ValueError, match="not a number"):
        above(values, math.nan)


@pytest.mark.parametrize("k", [-1, 6])
def test_impossible_counts_are_refused(k):
    draw, values = np.random.default_rng(0), np.zeros(5, np.float32)
    for select in (
        lambda: largest(values, k),
        lambda: uniform(5, k, draw),
        lambda: weighted(values, k, draw),
    ):
        with pytest.raises(ValueError, match=f"cannot select {k} of 5"):
            select()
    with pytest.raises(ValueError, match="float64 instead of float32"):
        largest(values.astype(np.float64), 2)


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
