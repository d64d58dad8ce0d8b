"""CE-SGD: it keeps its selection while the loss falls; tests of its operators and rare entries."""

from itertools import pairwise

import numpy as np
import pytest

from edgewire.compression.base import Rng, SparsifyContext
from tests.compression.sparsifiers.steps import LAYOUT, N, make, run, update

OPERATORS = ["map", "gradient", "union", "proportional", "largest"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_cesgd_keeps_its_set_while_the_loss_falls(operator):
    sparsifier = make("cesgd", operator=operator, speculative=0.01)
    sets = []
    for g, (indices, values, same), memory in run(sparsifier, 5, [3, 2, 1, 4, 2]):
        np.testing.assert_array_equal(values, g[indices])
        np.testing.assert_array_equal(np.flatnonzero(memory["sent"]), indices)
        sets.append((indices.tolist(), same))
    assert [same for _, same in sets] == [False, True, True, False, True]
    assert sets[0][0] == sets[1][0] == sets[2][0] != sets[3][0]
    assert sets[3][0] == sets[4][0]
    # Count all selections, or only those of steps whose loss has fallen.
    counts = (3, 2) if operator == "map" else (2, 1)
    expected = np.zeros(N)
    for (indices, _), count in zip((sets[0], sets[3]), counts, strict=True):
        expected[indices] += count
    np.testing.assert_array_equal(memory["map"], expected)
    # The first selection has density 0.12: its size is within 5 standard deviations.
    assert abs(len(sets[0][0]) - 0.12 * N) < 5 * np.sqrt(0.12 * 0.88 * N)


def test_the_control_keeps_its_set_by_chance():
    losses = np.linspace(1, 0, 400)  # the loss always falls
    same = [s.same for _, s, _ in run(make("cesgd", keep="random"), 400, losses)]
    assert not same[0]
    assert 150 < sum(same) < 250  # five standard deviations


@pytest.mark.parametrize("decay", [1, 0.5])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_map_is_the_decaying_sum_of_selections(operator, decay):
    """By equation 7 the operator `map` counts all selections, whatever the loss."""
    expected, losses = np.zeros(N), [5, 4, 6, 3, 2, 9]
    sparsifier = make("cesgd", operator=operator, decay=decay)
    for step, (_, (indices, _, _), memory) in enumerate(run(sparsifier, 6, losses)):
        expected *= decay
        if operator == "map" or (step and losses[step] < losses[step - 1]):
            expected[indices] += 1
        np.testing.assert_array_equal(memory["map"], expected)


def chances_of(weights, total):
    """Return the probabilities min(1, c w); c is such that they have the sum `total`."""
    low, high = 0.0, 1e9
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * weights).sum() < total else (low, c)
    return np.minimum(1, c * weights)


@pytest.mark.parametrize("density", [0.05, 0.34, 0.9])
@pytest.mark.parametrize("operator", ["proportional", "largest"])
def test_cesgds_operators_send_the_density(operator, density):
    sparsifier = make("cesgd", operator=operator, density=density, speculative=0.0)
    sent = [len(s.indices) / N for _, s, _ in run(sparsifier, 200, [1.0] * 200)]
    assert np.mean(sent) == pytest.approx(density, rel=0.05)


@pytest.mark.few(4)
@pytest.mark.parametrize("scope", ["tensor", "global"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_cesgd_draws_with_its_probabilities(operator, scope):
    """A z-test over 3,000 draws of each coordinate; false alarm 1 in 10^6 for all together."""
    sparsifier = make("cesgd", operator=operator, speculative=0.0, scope=scope)
    g, draws = update(), 3000
    weights = np.random.default_rng(5).integers(0, 9, N).astype(np.float32)
    drawn = np.zeros(N)
    for seed in range(draws):
        memory = {"loss": np.array([1.0]), "map": weights.copy(), "sent": np.zeros(N, bool)}
        drawn[sparsifier.select(g, SparsifyContext(LAYOUT, memory, Rng(seed, 0), 2.0)).indices] += 1
    p = np.empty(N)
    for start, stop in pairwise(LAYOUT.offsets if scope == "tensor" else [0, N]):
        m = weights[start:stop] / weights[start:stop].max()
        a = np.abs(g[start:stop]) / np.abs(g[start:stop]).max()
        union = 1 - (1 - m) * (1 - np.minimum(1, 1.5 * a))
        found = {"map": m, "gradient": a, "union": union}
        found["proportional"] = chances_of(a * (1 + m), 0.12 * (stop - start))
        most = np.argsort(a * (1 + m))[-max(1, int(0.12 * (stop - start))) :]
        found["largest"] = np.isin(np.arange(stop - start), most)
        p[start:stop] = found[operator]
    spread = np.sqrt(p * (1 - p) / draws)
    assert (np.abs(drawn / draws - p) < 6.2 * spread + 1e-3).all()


def test_cesgd_speculates_on_rarely_sent_coordinates():
    sparsifier = make("cesgd", operator="map", speculative=0.05)
    weights = np.zeros(N, dtype=np.float32)
    weights[: N // 2] = 10
    weights[LAYOUT.offsets[1:-1]] = 10  # every tensor has an entry that was seen
    memory = {"loss": np.array([1.0]), "map": weights.copy(), "sent": np.zeros(N, bool)}
    indices, _, _ = sparsifier.select(update(), SparsifyContext(LAYOUT, memory, Rng(0, 0), 2.0))
    rare = indices[weights[indices] == 0]
    assert len(rare) == pytest.approx(0.05 * N, abs=3)
