"""The rules of `topk`, `threshold`, `gradient_dropping`, `randomk` and `selective`."""

import numpy as np

from edgewire.compression.base import Rng, SparsifyContext
from edgewire.compression.layout import Layout
from tests.compression.sparsifiers.steps import LAYOUT, N, make, run, update


def test_topk_of_each_tensor():
    _, (indices, _, _), _ = next(run(make("topk", density=0.1, scope="tensor"), 1))
    segments = np.searchsorted(indices, LAYOUT.offsets)
    assert np.diff(segments).tolist() == [30, 1, 60]


def test_threshold_sends_the_threshold_and_keeps_the_difference():
    tau, residual = np.float32(1.5), np.zeros(N, dtype=np.float32)
    for g, (indices, values, _), memory in run(make("threshold", threshold=1.5), 4):
        residual += g
        expected = np.flatnonzero(np.abs(residual) > tau)
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(values, np.sign(residual[expected]) * tau)
        residual[expected] -= values
        np.testing.assert_allclose(memory["residual"], residual, atol=1e-6)


def test_a_sampled_threshold_drops_about_the_share():
    big = Layout(("w",), ((1000, 500),), ("float32",))
    g = np.random.default_rng(0).normal(size=big.size).astype(np.float32)
    chosen = make("gradient_dropping", cut="sampled", drop=0.99).select(
        g, SparsifyContext(big, {}, Rng(1, 0))
    )
    # 10 entries of a sample of 1,000 exceed the threshold: the share sent is 1 % +- 5 * 0.32 %.
    assert 0 < len(chosen.indices) < 0.026 * big.size
    floor = np.abs(chosen.values).min()
    assert (np.abs(np.delete(g, chosen.indices)) <= floor).all()


def test_a_rescaled_random_selection_is_unbiased_and_keeps_no_residual():
    """A z-test of each coordinate's mean, 4,000 draws; false alarm 1 in 10^6 for all together."""
    for scope in ("global", "tensor"):
        sparsifier = make("randomk", density=0.25, rescale=True, scope=scope)
        g, total, draws = update(), np.zeros(N), 4000
        for seed in range(draws):
            memory = {}
            indices, values, _ = sparsifier.select(g, SparsifyContext(LAYOUT, memory, Rng(seed, 0)))
            total[indices] += values
            assert not memory
        spread = np.abs(g) * np.sqrt(3 / draws)  # a value is 4 g with probability 1/4
        assert (np.abs(total / draws - g) < 6.2 * spread + 1e-6).all()


def test_selective_at_random_draws_above_the_threshold():
    sparsifier = make("selective", density=0.05, pick="random", threshold=1.0)
    seen = set()
    for g, (indices, values, _), memory in run(sparsifier, 5):
        assert (np.abs(values) > 1).all()
        np.testing.assert_array_equal(values, g[indices])
        assert len(indices) == int(0.05 * N)
        assert not memory
        seen.add(tuple(indices.tolist()))
    assert len(seen) == 5
