"""Random selections follow their probability laws.

Each statistical test rejects a correct law for about one seed in a million; the seeds are fixed.
"""

import itertools
import math

import numpy as np
import pytest

from edgewire.compression import buffers, selection
from edgewire.compression.sampling import first_to_ring
from edgewire.compression.selection import above, largest, uniform, weighted
from tests.compression.vectors import N, expect, heavy

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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [1e-4, 0.01, 0.5, 5])
def test_clocks_before_a_horizon(share, dtype):
    draw, n = np.random.default_rng(7), N
    weights = (1 + np.arange(n) % 3).astype(dtype)
    chances = -np.expm1(-share * weights.astype(np.float64))
    found = np.concatenate([first_to_ring(weights, n, share, draw) for _ in range(3)])
    for weight in (1, 2, 3):
        expected = 3 * chances[weights == weight].sum()
        count = np.count_nonzero(weights[found] == weight)
        assert abs(count - expected) < Z * math.sqrt(expected * (1 - chances[weight - 1])) + 1


def test_weighted_draws_do_not_depend_on_the_position():
    draw, n, k = np.random.default_rng(8), N, 9
    weights = np.ones(n, np.float32)
    found = np.concatenate([weighted(weights, k, draw) for _ in range(150)])
    assert abs(found.mean() / n - 0.5) < Z / math.sqrt(12 * len(found))
    assert abs((found % 4).mean() - 1.5) < Z * math.sqrt(1.25 / len(found))


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


def test_weighted_choices_of_none():
    draw = np.random.default_rng(0)
    for n in (0, 1, 10, 300_000):
        assert len(selection.weighted(np.ones(n, dtype=np.float32), 0, draw)) == 0
