"""The server's optimisers take torch's steps, also if they are given only some entries."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.task.errors import TaskError
from edgewire.task.optimizers import SGD, Adam, EF21Estimate, Momentum, OneBitAdam

SIZE, STEPS = 60, 20
EVERYWHERE = slice(None)
RULES = [
    *(SGD(), Momentum(), Momentum(momentum=0.0), Adam(), Adam(0.5, 0.9, 1e-3)),
    *(Momentum(0.8, nesterov=True), EF21Estimate()),
]
LAZY = [
    *(Momentum(0.8, lazy=True), Adam(0.7, 0.95, lazy=True)),
    Momentum(0.8, lazy=True, nesterov=True),
]


def rate(number):
    return 0.1 / (1 + number % 3)


def whole(seed):
    """Return (STEPS, SIZE) gradients of very different magnitudes; some entries are 0.

    They are read-only, because an optimiser must not change its gradients.
    """
    draw = np.random.default_rng(seed)
    sizes = 10.0 ** draw.integers(-4, 2, SIZE)
    kept = draw.random((STEPS, SIZE)) < 0.9
    made = (draw.normal(size=(STEPS, SIZE)) * sizes * kept).astype(np.float32)
    made.flags.writeable = False
    return made


def sets(seed):
    """Return an index set for each step: empty, full, and random ones."""
    draw = np.random.default_rng(seed)
    shares = [0.0, 1.0, *draw.random(STEPS - 2)]
    return [np.flatnonzero(draw.random(SIZE) < share).astype(np.uint32) for share in shares]


def run(rule, steps):
    """Take a step for each (indices, gradient); return the model and the optimiser's arrays."""
    x, state = np.linspace(-1, 1, SIZE, dtype=np.float32), rule.state(SIZE)
    for number, (at, gradient) in enumerate(steps, 1):
        rule.step(x, state, at, gradient, rate(number), number)
    return {"x": x, **state}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def torchs(rule, parameters):
    if isinstance(rule, Adam):
        return torch.optim.Adam(parameters, betas=(rule.beta1, rule.beta2), eps=rule.eps)
    momentum = 1.0 if rule.incremental else getattr(rule, "momentum", 0.0)
    nesterov = getattr(rule, "nesterov", False)
    return torch.optim.SGD(parameters, momentum=momentum, nesterov=nesterov)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_dense_steps_are_torchs(rule):
    gradients = whole(1)
    x = torch.linspace(-1, 1, SIZE, dtype=torch.float64).requires_grad_()
    theirs = torchs(rule, [x])
    for number, gradient in enumerate(gradients, 1):
        theirs.param_groups[0]["lr"] = rate(number)
        x.grad = torch.from_numpy(gradient.astype(np.float64))
        theirs.step()
    ours = run(rule, [(EVERYWHERE, gradient) for gradient in gradients])["x"]
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, x.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_lazy_adam_is_torchs_sparse_adam():
    """torch adds eps before the bias correction; here eps is too small to matter."""
    rule, gradients, at = Adam(0.7, 0.95, 1e-20, lazy=True), whole(2), sets(2)
    x = torch.linspace(-1, 1, SIZE, dtype=torch.float64).requires_grad_()
    theirs = torch.optim.SparseAdam([x], betas=(rule.beta1, rule.beta2), eps=rule.eps)
    for number, (gradient, where) in enumerate(zip(gradients, at, strict=True), 1):
        theirs.param_groups[0]["lr"] = rate(number)
        places = torch.from_numpy(where.astype(np.int64))[None]
        values = torch.from_numpy(gradient[where].astype(np.float64))
        x.grad = torch.sparse_coo_tensor(places, values, (SIZE,), is_coalesced=True)
        theirs.step()
    ours = run(rule, [(w, g[w]) for g, w in zip(gradients, at, strict=True)])["x"]
    np.testing.assert_allclose(ours, x.detach().numpy(), rtol=1e-6, atol=1e-6)


@given(
    seed=st.integers(0, 2**32),
    rule=st.sampled_from([*RULES, OneBitAdam(warmup_steps=STEPS // 2)]),
)
def test_a_sparse_gradient_equals_a_dense_one_with_zeros(seed, rule):
    sparse, dense = [], []
    for gradient, where in zip(whole(seed), sets(seed), strict=True):
        sparse.append((where, gradient[where]))
        dense.append((EVERYWHERE, np.zeros_like(gradient)))
        dense[-1][1][where] = gradient[where]
    assert_same(run(rule, sparse), run(rule, dense))


@given(seed=st.integers(0, 2**32), at=st.sampled_from([EVERYWHERE, np.arange(SIZE, dtype="u4")]))
def test_a_lazy_optimiser_equals_the_dense_one_if_all_entries_are_received(seed, at):
    steps = [(at, gradient) for gradient in whole(seed)]
    for lazy in LAZY:
        eager = replace(lazy, lazy=False)
        assert_same(run(lazy, steps), run(eager, steps))


@given(seed=st.integers(0, 2**32), rule=st.sampled_from([*LAZY, SGD()]))
def test_a_lazy_optimiser_does_not_change_entries_not_received(seed, rule):
    where, gradients = sets(seed)[5], whole(seed)
    others = np.setdiff1d(np.arange(SIZE), where)
    before = run(rule, [(EVERYWHERE, gradients[0])])
    after = run(rule, [(EVERYWHERE, gradients[0]), (where, gradients[1][where])])
    for name in before:
        assert before[name][others].tobytes() == after[name][others].tobytes()


BAD = [
    (Momentum, {"momentum": 1.0}, "momentum must be from 0 to below 1, not 1"),
    (Momentum, {"momentum": -0.1}, "momentum"),
    (Adam, {"beta1": 1.0}, "beta1"),
    (Adam, {"beta2": -1.0}, "beta2"),
    (Adam, {"eps": 0.0}, "eps must be above 0, not 0"),
    (Adam, {"eps": float("inf")}, "eps"),
    (OneBitAdam, {"eps": 0.0}, "eps"),
    (OneBitAdam, {"warmup_steps": 0}, "warmup_steps must be at least 1"),
]


@pytest.mark.parametrize(("rule", "options", "match"), BAD)
def test_impossible_values_are_refused(rule, options, match):
    with pytest.raises(TaskError, match=match) as refused:
        rule(**options)
    assert "\n" not in str(refused.value)


@given(st.integers(0, 99), st.integers(1, STEPS - 1))
def test_one_bit_adam_is_adam_whose_step_sizes_end_with_the_warm_up(seed, warmup):
    """Without compression, the mean of the nodes' momenta is the momentum of the mean gradient."""
    rule, adam = OneBitAdam(warmup_steps=warmup), Adam()
    x, state = np.zeros(SIZE, np.float32), rule.state(SIZE)
    wanted, theirs = x.copy(), adam.state(SIZE)
    nodes = [whole(seed + node) for node in range(3)]
    largest = np.abs(nodes).max(axis=(0, 1))
    for number in range(1, STEPS + 1):
        sent = [rule.uplink(gradients[number - 1], state, number) for gradients in nodes]
        mean = np.mean([gradients[number - 1] for gradients in nodes], axis=0)
        at = EVERYWHERE
        adam.step(wanted, theirs, at, mean, rate(number), number)
        rule.step(x, state, at, np.mean(sent, axis=0), rate(number), number)
        assert (np.abs(state["mean"] - theirs["mean"]) <= 1e-6 * largest).all()
        if number <= warmup:
            np.testing.assert_array_equal(x, wanted)
            still = state["square"].copy()
        else:
            np.testing.assert_array_equal(state["square"], still)


def test_entries_without_a_gradient_in_the_warm_up_stay():
    rule = OneBitAdam(warmup_steps=1)
    x, state = np.ones(2, np.float32), rule.state(2)
    rule.step(x, state, EVERYWHERE, np.array([1, 0], np.float32), 0.1, 1)
    rule.step(x, state, EVERYWHERE, np.array([1, 1], np.float32), 0.1, 2)
    assert x[0] < 0.9
    assert x[1] == 1
