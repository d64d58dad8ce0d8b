"""Exact top-k selections equal a brute-force search; random ones follow their probability laws.

Each statistical test rejects a correct law for about one seed in a million; the seeds are fixed.
"""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from edgewire.compression import buffers, selection
from edgewire.compression.per_tensor import largest_of_each
from edgewire.compression.sampling import rank
from edgewire.compression.selection import TINY, above, largest, uniform, weighted

N = 300_000


def expect(found, expected, what=""):
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, expected, err_msg=what)


@cache
def heavy():
    draw = np.random.default_rng(5)
    scales = np.repeat([1, 1e-3], [N // 3, N - N // 3])
    return (draw.standard_t(3, N) * scales).astype(np.float32)


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


Z = 4.9  # two-sided, one in a million


def chi_square_bound(df):
    """Return Wilson & Hilferty's quantile at one in a million."""
    return df * (1 - 2 / (9 * df) + Z * math.sqrt(2 / (9 * df))) ** 3


@pytest.mark.parametrize("n", [1, 50, 10_001, 12_000, 400_000])
def test_a_uniform_draw_is_a_set(n):
    draw = np.random.default_rng(1)
    for k in {0, 1, n // 1000, n // 50, n // 40, n // 10, n // 2, n - 1, n}:
        found = uniform(n, k, draw)
        assert found.dtype == np.uint32
        assert len(found) == k
        assert (np.diff(found.astype(np.int64)) > 0).all()
        assert not k or found[-1] < n


@pytest.mark.parametrize(
    ("n", "k", "times"), [(6, 2, 3000), (12_000, 100, 900), (12_000, 3000, 300)]
)
def test_uniform_law(n, k, times):
    draw, share = np.random.default_rng(2), k / n
    counts, neighbours = np.zeros(n), 0
    for _ in range(times):
        found = uniform(n, k, draw)
        counts[found] += 1
        neighbours += np.count_nonzero(np.diff(found.astype(np.int64)) == 1)
    # The entries of one draw are not independent, so the degrees of freedom are n - 1, not n.
    spread = ((counts - times * share) ** 2).sum() / (times * share * (1 - share)) * (n - 1) / n
    assert spread < chi_square_bound(n - 1)
    expected = times * k * (k - 1) / n  # (n - 1) pairs, each drawn with k (k - 1) / (n (n - 1))
    assert abs(neighbours - expected) < Z * math.sqrt(expected)


def set_probability(weights, members):
    """Return a set's probability in successive sampling: the sum over all orders of its members."""
    total, probability = sum(weights), 0.0
    for order in itertools.permutations(members):
        left, product = total, 1.0
        for member in order:
            product *= weights[member] / left
            left -= weights[member]
        probability += product
    return probability


@pytest.mark.parametrize("horizon", [math.inf, 1.0, 0.1])
@pytest.mark.parametrize("weights", [(1, 2, 3, 4, 5), (200_000, 90_000, 3, 1, 1, 20_000)])
def test_weighted_law_of_small_sets(monkeypatch, weights, horizon):
    draw, k, times = np.random.default_rng(3), 3, 1000
    # Most of the random times by which entries are drawn are later, so a draw needs several rounds.
    scaled = horizon * k / sum(weights)
    monkeypatch.setattr(selection, "horizon", lambda weights, k: scaled)
    given_weights = np.array(weights, dtype=np.float32)
    counts = dict.fromkeys(itertools.combinations(range(len(weights)), k), 0)
    for _ in range(times):
        counts[tuple(weighted(given_weights, k, draw).tolist())] += 1
    expected = {members: times * set_probability(weights, members) for members in counts}
    assert sum(expected.values()) == pytest.approx(times)
    # Sets with an expected count below five are pooled.
    rare = [members for members, count in expected.items() if count < 5]
    cells = [(counts[m], e) for m, e in expected.items() if e >= 5]
    if rare:
        cells.append((sum(counts[m] for m in rare), sum(expected[m] for m in rare)))
    spread = sum((count - e) ** 2 / e for count, e in cells)
    assert spread < chi_square_bound(len(cells) - 1) + 10 * bool(rare)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1, 1e-25, 1e30])
@pytest.mark.parametrize(("k", "times"), [(5, 120), (2000, 15), (60_000, 4)])
def test_weighted_law_of_large_sets(k, times, scale, dtype):
    draw, n = np.random.default_rng(4), 200_000
    classes = np.array([1, 4, 60, 3000, 200_000])
    sizes = np.array([0.6, 0.3, 0.07, 0.02, 0.01]) * n
    owner = draw.permutation(np.repeat(np.arange(5), sizes.astype(int)))
    weights = (classes[owner] * scale).astype(dtype)
    counts = np.zeros(5)
    for _ in range(times):
        counts += np.bincount(owner[weighted(weights, k, draw)], minlength=5)
    # If the k-th clock rings at t, clock i has rung by then with probability 1 - exp(-t w_i).
    low, high = 0.0, 1.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if sizes @ -np.expm1(-middle * classes) < k else (low, middle)
    rung = -np.expm1(-high * classes)
    expected, variance = times * sizes * rung, times * sizes * rung * (1 - rung)
    assert counts.sum() == times * k
    assert (np.abs(counts - expected) <= Z * np.sqrt(variance + 1) + 2e-4 * times * k).all()


@pytest.mark.parametrize("n", [10, N])
@pytest.mark.parametrize("positive", [0, 1, 4])
def test_with_few_positive_weights_the_others_are_uniform(n, positive):
    draw, counts = np.random.default_rng(9), np.zeros(10)
    weights = np.zeros(n)
    chosen = np.arange(positive) * (n // 10) + 3
    weights[chosen] = [1e-300, 1, 1e300, 7][:positive]
    expect(weighted(weights, positive, draw), chosen)
    for _ in range(200 if n == 10 else 5):
        found = weighted(weights, 6, draw)
        assert len(np.unique(found)) == 6
        assert (np.diff(found.astype(np.int64)) > 0).all()
        assert np.isin(chosen, found).all()
        counts += np.bincount(found[found < 10], minlength=10)
    if n == 10:
        share = (6 - positive) / (10 - positive)
        others = np.delete(counts, chosen)
        assert (np.abs(others - 200 * share) < Z * math.sqrt(200 * share * (1 - share))).all()
    expect(weighted(weights, n, draw), np.arange(n))


def drawn(seed):
    draw, weights = np.random.default_rng(seed), np.abs(heavy())
    return [
        uniform(N, 500, draw),
        uniform(N, N // 3, draw),
        weighted(weights, 3000, draw),
        weighted(weights[:100], 30, draw),
    ]


def test_a_draw_depends_on_the_seed_only():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = drawn(1)
    for buffer in buffers.buffers().values():
        buffer.fill(0xA7)
    for one, other, third in zip(first, drawn(1), drawn(2), strict=True):
        np.testing.assert_array_equal(one, other)
        assert not np.array_equal(one, third)
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("n", [1000, 20_000, N])
def test_results_are_not_scratch_arrays_and_arguments_are_unchanged(n):
    draw, values = np.random.default_rng(0), heavy()[:n]
    values.flags.writeable = False
    weights = np.abs(values)
    weights.flags.writeable = False
    for select in (
        lambda: largest(values, n // 3),
        lambda: above(values, 0.001),
        lambda: uniform(n, n // 3, draw),
        lambda: weighted(weights, n // 3, draw),
    ):
        found = select()
        for buffer in buffers.buffers().values():
            assert not np.shares_memory(found, buffer)
