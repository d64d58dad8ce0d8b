"""eSGD: its two algorithms, coordinate by coordinate, and its random choice by hidden weights."""

import numpy as np
import pytest

from edgewire.compression.base import Rng, SparsifyContext
from edgewire.compression.per_tensor import count
from tests.compression.sparsifiers.steps import LAYOUT, N, make, update


def esgd_by_hand(g, state, loss, rng, drop, literal):
    """Do algorithms 1 and 2 of eSGD, coordinate by coordinate; `rng` is the set that was drawn."""
    k, tau = count(1 - drop, N), np.abs(g).mean(dtype=np.float64)
    chosen = sorted(state["S"])
    better = loss < state["loss"]
    if better:
        for i in chosen:
            state["H"][i] += 1
    else:
        chosen = rng
    state["loss"] = loss
    r = state["r"]
    unsent = [i for i in range(N) if i not in set(chosen)]
    new = {i: 0.9 * r[i] + (0.1 if literal else 1) * g[i] for i in range(N)}
    queue = sorted((i for i in unsent if abs(new[i]) > tau), key=lambda i: -abs(new[i]))
    queue = queue[: int(0.5 * k)]
    return chosen, queue, new, better


@pytest.mark.parametrize("residual", ["momentum", "ema"])
def test_esgd_follows_its_algorithm(residual):
    sparsifier = make("esgd", drop=0.75, residual=residual)
    losses = [3.0, 2.0, 1.5, 1.9, 1.0, 0.9]
    state = {"S": [], "H": np.zeros(N, int), "r": np.zeros(N), "loss": -1.0}
    memory = {}
    for number, loss in enumerate(losses):
        g = update(number)
        fresh = dict(memory)
        indices, values, same = sparsifier.select(
            g, SparsifyContext(LAYOUT, memory, Rng(number, 0), loss)
        )
        sent, k = set(indices.tolist()), count(0.25, N)
        assert len(sent) == k
        chosen, queue, new, better = esgd_by_hand(
            g, state, loss, sorted(sent), 0.75, residual == "ema"
        )
        if better and fresh:
            # The last set without the coordinates of lowest H, plus those of large residual.
            assert set(queue) <= sent
            assert sent - set(queue) <= set(chosen)
            kept, gone = sent & set(chosen), set(chosen) - sent
            if gone:
                assert max(state["H"][i] for i in gone) <= min(state["H"][i] for i in kept)
            assert same == (not queue)
            for i, value in zip(indices.tolist(), values.tolist(), strict=True):
                expected = g[i] if residual == "ema" and i not in queue else new[i]
                assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
        for i in range(N):
            state["r"][i] = 0 if i in sent else new[i]
        state["S"] = sorted(sent)
        np.testing.assert_allclose(memory["residual"], state["r"], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(memory["hidden"], state["H"])


def test_esgd_prefers_coordinates_of_high_hidden_weight():
    """One coordinate of twenty has the hidden weight H = 1000, so it is nearly always drawn."""
    sparsifier = make("esgd", drop=0.9, cap=0.0)
    memory = {}
    sparsifier.select(update(), SparsifyContext(LAYOUT, memory, Rng(0, 0), 1.0))
    heavy = np.arange(0, N, 20)
    memory["hidden"][:] = 0
    memory["hidden"][heavy] = 1000
    indices, _, _ = sparsifier.select(update(1), SparsifyContext(LAYOUT, memory, Rng(1, 0), 2.0))
    assert np.isin(heavy, indices).mean() > 0.9
