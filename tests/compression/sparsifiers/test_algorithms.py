"""Each sparsifier follows the algorithm of its paper, and the rules of all sparsifiers."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import StepContext
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.per_tensor import count
from edgewire.compression.registry import get
from edgewire.compression.registry import names as methods
from edgewire.compression.sparsifiers.dgc import WARMUP
from edgewire.compression.sparsifiers.energy import Energy, fewest
from edgewire.compression.sparsifiers.topk import TopK
from tests.local_runs import local_run
from tests.runs import history_of, result_of

LAYOUT = Layout(("conv", "bias", "fc"), ((4, 3, 5, 5), (4,), (20, 30)), ("float32",) * 3)
N = LAYOUT.size


def update(seed=0):
    return np.random.default_rng(seed).standard_t(4, size=N).astype(np.float32)


def make(name, **options):
    return get("sparsifier", name)(**options)


def run(sparsifier, steps, losses=None):
    """Yield (update, selection, the sparsifier's state) for each of `steps` steps."""
    memory = {}
    for number in range(steps):
        loss = None if losses is None else losses[number]
        g = update(number)
        yield g, sparsifier.select(g, StepContext(LAYOUT, memory, (number, 0), loss)), memory


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


@pytest.mark.parametrize("name", ["cesgd", "esgd"])
def test_a_loss_falls_only_between_two_known_losses(name):
    losses = [-1.0, -2.0, None, 5.0, 4.0, float("nan"), 3.0, float("inf"), 1.0]
    options = {"cap": 0.0} if name == "esgd" else {}
    same = [s.same for _, s, _ in run(make(name, **options), len(losses), losses)]
    assert same == [False, True, False, False, True, False, False, False, False]


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
        g, StepContext(big, {}, (1, 0))
    )
    # 10 entries of a sample of 1,000 exceed the threshold: the share sent is 1 % +- 5 * 0.32 %.
    assert 0 < len(chosen.indices) < 0.026 * big.size
    floor = np.abs(chosen.values).min()
    assert (np.abs(np.delete(g, chosen.indices)) <= floor).all()


def test_a_rescaled_random_selection_is_unbiased_and_keeps_no_residual():
    """A z-test of each coordinate's mean, 1,500 draws; false alarm 1 in 10^6 for all together."""
    for scope in ("global", "tensor"):
        sparsifier = make("randomk", density=0.25, rescale=True, scope=scope)
        g, total, draws = update(), np.zeros(N), 1500
        for seed in range(draws):
            memory = {}
            indices, values, _ = sparsifier.select(g, StepContext(LAYOUT, memory, (seed, 0)))
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


@pytest.mark.parametrize("masked_from", [0.99, 0.9, 1])
def test_dgc_follows_its_algorithm(masked_from):
    options = {
        "sparsity": 0.995,
        "warmup_steps": 8,
        "momentum": 0.8,
        "clip_norm": 2.0,
        "workers": 4,
        "masked_from": masked_from,
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
        if sparsity >= masked_from:
            sparse = np.setdiff1d(indices, np.arange(*LAYOUT.offsets[1:3]))
            u[sparse] = 0
        np.testing.assert_allclose(memory["velocity"], v, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(memory["momentum"], u, rtol=1e-5, atol=1e-6)


def test_dgc_of_convolutions_only():
    _, (indices, _, _), _ = next(run(make("dgc", sparsity=0.99, layers="conv"), 1))
    assert np.diff(np.searchsorted(indices, LAYOUT.offsets)).tolist() == [3, 4, 600]


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
        indices, values, same = sparsifier.select(g, StepContext(LAYOUT, memory, (number, 0), loss))
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
    sparsifier.select(update(), StepContext(LAYOUT, memory, (0, 0), 1.0))
    heavy = np.arange(0, N, 20)
    memory["hidden"][:] = 0
    memory["hidden"][heavy] = 1000
    indices, _, _ = sparsifier.select(update(1), StepContext(LAYOUT, memory, (1, 0), 2.0))
    assert np.isin(heavy, indices).mean() > 0.9


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


@pytest.mark.few(4)
@pytest.mark.parametrize("scope", ["tensor", "global"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_cesgd_draws_with_its_probabilities(operator, scope):
    """A z-test over 1,500 draws of each coordinate; false alarm 1 in 10^6 for all together."""
    sparsifier = make("cesgd", operator=operator, speculative=0.0, scope=scope)
    g, draws = update(), 1500
    weights = np.random.default_rng(5).integers(0, 9, N).astype(np.float32)
    drawn = np.zeros(N)
    for seed in range(draws):
        memory = {"loss": np.array([1.0]), "map": weights.copy(), "sent": np.zeros(N, bool)}
        drawn[sparsifier.select(g, StepContext(LAYOUT, memory, (seed, 0), 2.0)).indices] += 1
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
    indices, _, _ = sparsifier.select(update(), StepContext(LAYOUT, memory, (0, 0), 2.0))
    rare = indices[weights[indices] == 0]
    assert len(rare) == pytest.approx(0.05 * N, abs=3)


@given(eta=st.floats(0.05, 1), density=st.sampled_from([0.01, 0.2, 1.0]))
def test_ef21_follows_its_algorithm(eta, density):
    """The sent values are those of v - h, where h is the sum of all that was sent."""
    v, h = np.zeros(N), np.zeros(N)
    for g, (indices, values, _), memory in run(make("ef21", eta=eta, density=density), 8):
        v = (1 - eta) * v + eta * g
        expected = np.sort(np.argsort(-np.abs(v - h), kind="stable")[: len(indices)])
        sizes = np.abs(v - h)
        assert sizes[indices].sum() == pytest.approx(sizes[expected].sum(), rel=1e-4)
        np.testing.assert_allclose(values, (v - h)[indices], rtol=1e-3, atol=1e-4)
        h[indices] += values
        np.testing.assert_allclose(memory["residual"], v - h, rtol=1e-3, atol=1e-4)


def test_with_all_entries_it_is_sgd(tmp_path):
    words = ["dataset=digits", "nodes=3", "rounds=20", "lr=0.1", "eval_every=20"]
    whole = ["compression.density=1", "compression.eta=1", "compression.quantizer=float32"]
    local_run(tmp_path / "ef21", "algorithm=ef21_sgdm", *whole, *words)
    local_run(tmp_path / "sgd", "algorithm=sgd", *words)
    ours, theirs = result_of(tmp_path / "ef21"), result_of(tmp_path / "sgd")
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


def test_a_lost_reply_is_no_change(tmp_path):
    """With lost replies the loss falls as without them; the estimate does not drift away."""
    words = ["algorithm=ef21_sgdm", "dataset=digits", "nodes=4", "rounds=30", "eval_every=30"]
    words += ["lr=0.3", "schedule=constant"]
    local_run(tmp_path / "all", *words)
    local_run(tmp_path / "lost", *words, "network.loss=0.1", "timeout=5")
    assert result_of(tmp_path / "lost")["failures"] > 5
    assert result_of(tmp_path / "lost")["loss"] < 1.3 * result_of(tmp_path / "all")["loss"]


LARGE = Layout(("w",), ((1000,),), ("float32",))
WARM = {"sparsifier": "topk", "density": 0.01, "warmup_density": 0.1, "warmup_steps": 3}


@pytest.mark.parametrize(("number", "count"), [(0, 10), (1, 100), (3, 100), (4, 10), (100, 10)])
def test_the_first_updates_hold_more_entries(number, count):
    update = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    payload = make_codec(**WARM).encode(update, LARGE, number=number)
    assert len(decode_update(payload, LARGE).values) == count


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 4)), min_size=1, max_size=6),
    st.integers(1, 100),
    st.floats(0.01, 1),
    st.integers(0, 2**32),
)
def test_each_chunk_sends_its_largest_entries(shapes, chunk, density, seed):
    """The chunks of one tensor have the same share as tensors of the same sizes."""
    layout = Layout(tuple(map(str, range(len(shapes)))), tuple(shapes), ("float32",) * len(shapes))
    sizes = [
        min(chunk, rows * columns - start)
        for rows, columns in shapes
        for start in range(0, rows * columns, chunk)
    ]
    cut = Layout(tuple(map(str, sizes)), tuple((n,) for n in sizes), ("float32",) * len(sizes))
    update = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    chosen = []
    for each, scope in ((layout, "chunk"), (cut, "tensor")):
        method = TopK(density=density, scope=scope, chunk_size=chunk)
        chosen.append(method.choose(update, StepContext(each, {}, (0, 0))))
    np.testing.assert_array_equal(*chosen)


VALUES = st.one_of(
    st.floats(-3.0, 3.0, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1.0, -1.0, 1e-45, 3.4e38]),
)


@given(st.lists(VALUES, min_size=1, max_size=300), st.floats(0.001, 1))
def test_the_fewest_entries_hold_a_share_of_the_energy(values, share):
    """One class of magnitudes is 1/128 wide, so that an entry more or less may be sent."""
    values = np.array(values, dtype=np.float32)
    values[abs(values) < 1e-38] = 0
    squares = np.sort(values.astype(np.float64) ** 2)[::-1]
    held, wanted = np.cumsum(squares), share * squares.sum()
    count = fewest(values, share)
    if share == 1 or not wanted:
        assert count == (np.count_nonzero(values) if wanted else 0)
        return
    assert held[count - 1] >= wanted * (1 - 2**-6)
    assert count == 1 or held[count - 2] <= wanted * (1 + 2**-6)


@given(st.integers(0, 2**32), st.floats(0.01, 0.99), st.floats(0.01, 10), st.floats(0.01, 10))
def test_more_fidelity_sends_the_same_entries_and_more(seed, energy, one, other):
    update = np.random.default_rng(seed).standard_t(3, size=N).astype(np.float32)
    step = StepContext(LAYOUT, {}, (0, 0))
    few, many = (
        Energy(energy=energy, fidelity=str(each)).choose(update, step)
        for each in sorted((one, other))
    )
    assert set(few.tolist()) <= set(many.tolist())


@pytest.mark.parametrize("fidelity", ["1e20", "1e308"])
def test_a_huge_fidelity_sends_all_entries(fidelity):
    chosen = Energy(energy=0.9, fidelity=fidelity).choose(update(), StepContext(LAYOUT, {}, (0, 0)))
    assert len(chosen) == N


@pytest.mark.parametrize(("number", "last"), [(0, 0), (1, 0), (15, 0), (16, 1), (20, 1), (25, 1)])
def test_the_last_updates_hold_more_energy(number, last):
    method = Energy(energy=0.2, last_energy=0.8, last_share=0.25, total_steps=20)
    update = np.random.default_rng(0).normal(size=N).astype(np.float32)
    chosen = method.choose(update, StepContext(LAYOUT, {}, (0, 0), number=number))
    assert len(chosen) == fewest(update, (0.2, 0.8)[last])


RUNS = {
    "Flower's": ["algorithm=fedavg_topk", "downlink=topk"],
    "sparse averaging": [
        "algorithm=fedavg_topk", "downlink=topk", "strategy=sparse_averaging",
        "strategy.update=delta",
    ],
    "pushes": [
        "algorithm=fedbuff", "compression=topk", "downlink=topk", "strategy.pushes=16",
        "eval_every=4", "strategy.buffer=1",
    ],
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", RUNS)
def test_both_directions_have_a_warm_up(kind, tmp_path):
    """Nodes and server send ten times as many entries in the first two rounds."""
    sent = {}
    for steps in (0, 2):
        words = [
            f"{way}.{key}" for way in ("compression", "downlink")
            for key in ("density=0.01", "warmup_density=0.1", f"warmup_steps={steps}")
        ]  # fmt: skip
        run = [*RUNS[kind], "rounds=4", "nodes=2", "local_steps=2", "downlink.from_seed=true"]
        local_run(tmp_path / str(steps), *run, *words)
        rows = history_of(tmp_path / str(steps))
        columns = ("uplink_bytes", "downlink_bytes")
        sent[steps] = np.diff([[row[key] for key in columns] for row in rows], axis=0)
    first, last = sent[2][:2].sum(axis=0), sent[2][-1]
    before, after = sent[0][:2].sum(axis=0), sent[0][-1]
    assert (first > 2.5 * before).all()  # the first message down holds no values
    assert (last < 1.2 * after).all()
