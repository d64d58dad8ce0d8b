"""Staleness counted without a stored history equals staleness counted from a full history.

Stale updates are multiplied by factors that depend on their staleness.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.strategy import staleness
from edgewire.strategy.staleness import (
    SHARE,
    STEP_COST,
    Counted,
    Global,
    Ignored,
    PerParameter,
    Polynomial,
)

N = 256
SETS = st.sets(st.integers(0, 5) | st.integers(0, N - 1)).map(
    lambda s: np.array(sorted(s), dtype=np.uint32)
)
UPDATES = st.one_of(SETS, st.none())  # None: every entry
EVENTS = st.lists(st.tuples(st.integers(0, 3), UPDATES), max_size=40)


def every(indices):
    return np.arange(N) if indices is None else indices


@given(events=EVENTS)
def test_the_staleness_of_a_parameter_equals_a_full_historys(events):
    """In each event the server applies one node's update, then sends this node the new model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staleness, "STEP_COST", 1)  # so that few entries or steps already make a copy
        follow(events)


def follow(events):
    policy, history = PerParameter(), []
    policy.start(N, Counted())
    sent = {node: (len(history), policy.seen()) for node in range(4)}
    for node, indices in events:
        when, seen = sent[node]
        counted = [sum(i in every(u) for u in history[when:]) for i in every(indices)]
        np.testing.assert_array_equal(policy.staleness(seen, indices), counted)
        factor = policy.factor(len(history) - when, seen, indices)
        assert factor.dtype == np.float32
        np.testing.assert_array_equal(factor, np.float32(1) / np.maximum(counted, 1, dtype="f4"))
        policy.applied(indices)
        history.append(indices)
        sent[node] = len(history), policy.seen()


def test_nodes_with_the_same_model_share_one_record():
    policy = PerParameter()
    policy.start(N, Counted())
    first = policy.seen()
    assert policy.seen() is first
    policy.applied(np.array([3], dtype=np.uint32))
    assert policy.seen() is not first
    assert not first.copy.any()  # the earlier counts have not changed
    assert first.steps == 0


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2, 1.0])
def test_counts_are_copied_rarely(share):
    """Many small steps share one copy of the counts, so sending takes no longer than receiving."""
    size, pushes = 100_000, 400
    policy, random = PerParameter(), np.random.default_rng(0)
    policy.start(size, Counted())
    copies = []
    for _ in range(pushes):
        chosen = np.flatnonzero(random.random(size) < share).astype(np.uint32)
        policy.applied(None if share == 1 else chosen)
        if not copies or policy.seen().copy is not copies[-1]:
            copies.append(policy.seen().copy)
        log, steps = policy.seen().log, policy.seen().steps
        assert len(log) == steps  # every logged step is still needed
        assert sum(STEP_COST + (0 if i is None else len(i)) for i in log) * SHARE <= size
    assert len(copies) <= 2 + pushes * SHARE * (
        (share * 1.2 if share < 1 else 0) + STEP_COST / size
    )


@pytest.mark.parametrize(
    ("policy", "factors"),
    [
        (Ignored(), [1, 1, 1, 1]),
        (Global(), [1, 1, 0.5, 0.25]),
        (Polynomial(), [1, 2**-0.5, 3**-0.5, 5**-0.5]),
        (Polynomial(1.0), [1, 1 / 2, 1 / 3, 1 / 5]),
    ],
)
def test_one_factor_for_the_whole_update(policy, factors):
    policy.start(N, Counted())
    found = [policy.factor(staleness, policy.seen(), None) for staleness in (0, 1, 2, 4)]
    assert found == [np.float32(factor) for factor in factors]
    assert all(type(factor) is np.float32 for factor in found)


@pytest.mark.parametrize("a", [-0.1, float("nan")])
def test_a_wrong_exponent_is_refused(a):
    with pytest.raises(ValueError, match="a must be at least 0"):
        Polynomial(a)
