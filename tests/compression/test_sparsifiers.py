"""What holds for one sparsifier only: its rule, against a plain and slow way to write it."""

import numpy as np
import pytest

from compression import Layout, make_codec
from compression import names as methods
from compression.registry import get
from compression.sparsifiers.dgc import WARMUP
from compression.sparsifiers.scope import count
from compression.stages import Rng, Step

LAYOUT = Layout(("conv", "bias", "fc"), ((4, 3, 5, 5), (4,), (20, 30)), ("float32",) * 3)
N = LAYOUT.size


def update(seed=0):
    return np.random.default_rng(seed).standard_t(4, size=N).astype(np.float32)


def make(name, **options):
    return get("sparsifier", name)(**options)


def run(sparsifier, steps, losses=None):
    """Yield (update, selection, memory) of some steps."""
    memory = {}
    for number in range(steps):
        loss = None if losses is None else losses[number]
        g = update(number)
        yield g, sparsifier.select(g, Step(LAYOUT, memory, Rng(number, 0), loss)), memory


@pytest.mark.parametrize("share", [0.001, 0.1, 0.29, 1.0])
def test_counts(share):
    assert count(share, 0) == 0
    assert count(share, 100) == max(1, round(share * 100))
    assert count(0.0, 100) == 0


@pytest.mark.parametrize("name", methods("sparsifier"))
def test_selections_are_in_order_and_never_change_the_update(name):
    for number, (g, (indices, values, _), _) in enumerate(run(make(name), 4, [3, 2, 1, 2])):
        np.testing.assert_array_equal(g, update(number))
        if indices is not None:
            assert indices.dtype == np.uint32
            assert (np.diff(indices.astype(np.int64)) > 0).all()
            assert values.shape == indices.shape
        assert values.dtype == np.float32
        assert values.flags.c_contiguous


def test_topk_takes_the_largest_of_residual_and_update():
    residual = np.zeros(N, dtype=np.float32)
    for g, (indices, values, _), memory in run(make("topk", density=0.1), 4):
        residual += g
        expected = np.sort(np.argsort(-np.abs(residual), kind="stable")[: int(0.1 * N)])
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(values, residual[expected])
        residual[expected] = 0
        np.testing.assert_array_equal(memory["residual"], residual)


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
    chosen = make("gradient_dropping", cut="sampled", drop=0.99).select(g, Step(big, {}, Rng(1, 0)))
    # 10 of a sample of 1,000 lie above the threshold: the share sent is 1 % +- 5 * 0.32 %.
    assert 0 < len(chosen.indices) < 0.026 * big.size
    floor = np.abs(chosen.values).min()
    assert (np.abs(np.delete(g, chosen.indices)) <= floor).all()


def test_a_rescaled_random_selection_keeps_nothing_and_is_right_on_average():
    """z-test of each coordinate's mean over 4,000 draws; false alarm 1 in 10^6 for all together."""
    for scope in ("global", "tensor"):
        sparsifier = make("randomk", density=0.25, rescale=True, scope=scope)
        g, total, draws = update(), np.zeros(N), 4000
        for seed in range(draws):
            memory = {}
            indices, values, _ = sparsifier.select(g, Step(LAYOUT, memory, Rng(seed, 0)))
            total[indices] += values
            assert not memory
        spread = np.abs(g) * np.sqrt(3 / draws)  # of a value that is 4 g with probability 1/4
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


def esgd_by_hand(g, state, loss, rng, drop, literal):
    """Algorithms 1 and 2 of eSGD, coordinate by coordinate; the draws are given as a set."""
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
        indices, values, same = sparsifier.select(g, Step(LAYOUT, memory, Rng(number, 0), loss))
        sent, k = set(indices.tolist()), count(0.25, N)
        assert len(sent) == k
        chosen, queue, new, better = esgd_by_hand(
            g, state, loss, sorted(sent), 0.75, residual == "ema"
        )
        if better and fresh:
            # The set of the last step, its lowest H displaced by the large residuals.
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
    """H + 1 = 1001 for one in ten: drawn nearly always. False alarm far below 1 in 10^6."""
    sparsifier = make("esgd", drop=0.9, cap=0.0)
    memory = {}
    sparsifier.select(update(), Step(LAYOUT, memory, Rng(0, 0), 1.0))
    heavy = np.arange(0, N, 20)
    memory["hidden"][:] = 0
    memory["hidden"][heavy] = 1000
    indices, _, _ = sparsifier.select(update(1), Step(LAYOUT, memory, Rng(1, 0), 2.0))
    assert np.isin(heavy, indices).mean() > 0.9


OPERATORS = ["map", "gradient", "union", "proportional"]


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
    expected = np.zeros(N)
    expected[sets[0][0]] += 2
    expected[sets[3][0]] += 1
    np.testing.assert_array_equal(memory["map"], expected)
    # V0 has density 0.12: within 5 standard deviations.
    assert abs(len(sets[0][0]) - 0.12 * N) < 5 * np.sqrt(0.12 * 0.88 * N)


@pytest.mark.parametrize("name", ["cesgd", "esgd"])
def test_a_loss_falls_only_between_two_that_are_known(name):
    losses = [-1.0, -2.0, None, 5.0, 4.0, float("nan"), 3.0, float("inf"), 1.0]
    options = {"cap": 0.0} if name == "esgd" else {}
    same = [s.same for _, s, _ in run(make(name, **options), len(losses), losses)]
    assert same == [False, True, False, False, True, False, False, False, False]


def chances_of(weights, total):
    """min(1, c w) with the sum `total`: c by bisection."""
    low, high = 0.0, 1e9
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * weights).sum() < total else (low, c)
    return np.minimum(1, c * weights)


@pytest.mark.parametrize("density", [0.05, 0.34, 0.9])
def test_cesgds_proportional_sends_the_density(density):
    sparsifier = make("cesgd", operator="proportional", density=density, speculative=0.0)
    sent = [len(s.indices) / N for _, s, _ in run(sparsifier, 200, [1.0] * 200)]
    assert np.mean(sent) == pytest.approx(density, rel=0.05)


@pytest.mark.parametrize("operator", OPERATORS)
def test_cesgd_draws_with_its_probabilities(operator):
    """z-test over 3,000 draws of each coordinate; false alarm 1 in 10^6 for all together."""
    sparsifier = make("cesgd", operator=operator, speculative=0.0)
    g, draws = update(), 3000
    weights = np.random.default_rng(5).integers(0, 9, N).astype(np.float32)
    drawn = np.zeros(N)
    for seed in range(draws):
        memory = {"loss": np.array([1.0]), "map": weights.copy(), "sent": np.zeros(N, bool)}
        drawn[sparsifier.select(g, Step(LAYOUT, memory, Rng(seed, 0), 2.0)).indices] += 1
    p = np.empty(N)
    for start, stop in zip(LAYOUT.offsets[:-1], LAYOUT.offsets[1:], strict=True):
        m = weights[start:stop] / weights[start:stop].max()
        a = np.abs(g[start:stop]) / np.abs(g[start:stop]).max()
        union = 1 - (1 - m) * (1 - np.minimum(1, 1.5 * a))
        found = {"map": m, "gradient": a, "union": union}
        found["proportional"] = chances_of(a * (1 + m), 0.12 * (stop - start))
        p[start:stop] = found[operator]
    spread = np.sqrt(p * (1 - p) / draws)
    assert (np.abs(drawn / draws - p) < 6.2 * spread + 1e-3).all()


def test_cesgd_speculates_on_seldom_seen_coordinates():
    sparsifier = make("cesgd", operator="map", speculative=0.05)
    weights = np.zeros(N, dtype=np.float32)
    weights[: N // 2] = 10
    weights[LAYOUT.offsets[1:-1]] = 10  # no tensor without any
    memory = {"loss": np.array([1.0]), "map": weights, "sent": np.zeros(N, bool)}
    indices, _, _ = sparsifier.select(update(), Step(LAYOUT, memory, Rng(0, 0), 2.0))
    rare = indices[weights[indices] == 0]
    assert len(rare) == pytest.approx(0.05 * N, abs=3)


def test_dgc_follows_its_algorithm():
    options = {
        "sparsity": 0.995,
        "warmup_steps": 8,
        "momentum": 0.8,
        "clip_norm": 2.0,
        "workers": 4,
    }
    sparsifier = make("dgc", **options)
    u, v = np.zeros(N), np.zeros(N)
    for number, (g, (indices, values, _), memory) in enumerate(run(sparsifier, 11)):
        clipped = g * min(1, 2.0 * 4**-0.5 / np.linalg.norm(g))
        u = 0.8 * u + clipped
        v = v + u
        sparsity = min(WARMUP[number // 2], 0.995) if number < 8 else 0.995
        expected = []
        for tensor, (start, stop) in enumerate(
            zip(LAYOUT.offsets[:-1], LAYOUT.offsets[1:], strict=True)
        ):
            k = stop - start if tensor == 1 else count(1 - sparsity, stop - start)
            expected += (start + np.argsort(-np.abs(v[start:stop]))[:k]).tolist()
        np.testing.assert_array_equal(indices, np.sort(expected))
        np.testing.assert_allclose(values, v[indices], rtol=1e-5, atol=1e-6)
        v[indices] = 0
        if sparsity >= 0.99:
            sparse = np.setdiff1d(indices, np.arange(*LAYOUT.offsets[1:3]))
            u[sparse] = 0
        np.testing.assert_allclose(memory["velocity"], v, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(memory["momentum"], u, rtol=1e-5, atol=1e-6)


def test_dgc_of_convolutions_only():
    _, (indices, _, _), _ = next(run(make("dgc", sparsity=0.99, layers="conv"), 1))
    assert np.diff(np.searchsorted(indices, LAYOUT.offsets)).tolist() == [3, 4, 600]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("topk", {"density": 0.0}),
        ("topk", {"density": 1.1}),
        ("topk", {"density": float("nan")}),
        ("topk", {"scope": "layer"}),
        ("threshold", {"threshold": -1.0}),
        ("threshold", {"sent": "half"}),
        ("gradient_dropping", {"drop": 1.5}),
        ("gradient_dropping", {"cut": "rough"}),
        ("randomk", {"density": -0.1}),
        ("selective", {"pick": "best"}),
        ("selective", {"threshold": 0.1}),
        ("esgd", {"drop": 2.0}),
        ("esgd", {"residual": "sum"}),
        ("esgd", {"beta": 1.5}),
        ("esgd", {"cap": -1.0}),
        ("cesgd", {"operator": "both"}),
        ("cesgd", {"gain": float("inf")}),
        ("cesgd", {"speculative": 2.0}),
        ("gradient_dropping", {"drop": 1.0}),
        ("esgd", {"drop": 1.0}),
        ("threshold", {"threshold": 0.0}),
        ("dgc", {"sparsity": 1.0}),
        ("dgc", {"layers": "fc"}),
        ("dgc", {"workers": 0}),
        ("dgc", {"warmup_steps": -1}),
        ("dgc", {"clip_norm": -1.0}),
        ("dgc", {"momentum": 1.1}),
    ],
)
def test_options_out_of_range_are_one_line(name, options):
    with pytest.raises(ValueError, match=f"option {next(iter(options))} of {name}") as error:
        make_codec(name, **options)
    assert "\n" not in str(error.value)
