"""Unusable replies are counted and named, and a run without usable replies ends."""

import pytest

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import FailureLimits, Traffic
from edgewire.compression.flower.headers import HEALS
from edgewire.compression.flower.server.failure_policy import (
    ONE_ROUND,
    UNUSABLE,
    FailurePolicy,
    FailurePolicyState,
)
from edgewire.compression.flower.server.session import forget_nodes

EVERY = [1, 2, 3]


@pytest.fixture
def traffic():
    return Traffic()


def play(policy, rounds):
    """Play rounds, each (used replies, reasons of other replies); return the number played."""
    for played, (used, reasons) in enumerate(rounds, 1):
        policy.begin_round(asked=used + len(reasons))
        for node, reason in enumerate(reasons):
            policy.leave_out(node, reason)
        try:
            policy.end_round(played, used, used + len(reasons))
        except PayloadError as error:
            return played, str(error)
    return len(rounds), ""


BAD, GOOD, NONE, HEALED = (0, ["x"] * 3), (1, []), (0, []), (0, [f"lost: {HEALS}"] * 3)
FEW = (0, ["x"] * 2)  # replies of fewer than three nodes
CASES = {
    "one": (ONE_ROUND, [GOOD, BAD, GOOD], 2),
    "two of three": (FailureLimits(patience=2), [BAD, GOOD, BAD, BAD, GOOD], 4),
    "no replies do not count": (FailureLimits(patience=2), [BAD, NONE, NONE, BAD, GOOD], 4),
    "few nodes have longer": (FailureLimits(patience=2, few=3), [FEW, FEW, FEW, GOOD], 3),
    "many nodes among few": (FailureLimits(patience=1, few=3), [FEW, BAD, GOOD], 2),
    "healing once": (ONE_ROUND, [HEALED, GOOD, HEALED, GOOD], 4),
    "healing again and again": (ONE_ROUND, [HEALED, HEALED, GOOD], 2),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_after_rounds_without_a_usable_reply(case, traffic):
    limits, rounds, end = CASES[case]
    played, said = play(FailurePolicy(traffic, limits), rounds)
    assert played == end
    assert bool(said) == (end < len(rounds))
    assert not said or said.startswith(UNUSABLE)
    assert traffic.failures == sum(len(reasons) for _, reasons in rounds[:end])


def test_replies_without_an_update_end_the_run(traffic):
    policy = FailurePolicy(traffic)
    policy.begin_round(asked=3)
    with pytest.raises(PayloadError, match=f"^{UNUSABLE} in round 1: no reply held an update"):
        policy.end_round(1, used=0, replies=3)


def test_a_resumed_policy_counts_on(traffic):
    state, limits = FailurePolicyState(), FailureLimits(patience=2)
    play(FailurePolicy(traffic, limits, state), [BAD])
    assert play(FailurePolicy(traffic, limits, state), [BAD])[1]


def test_a_run_ends_when_every_node_has_failed_repeatedly(traffic):
    policy = FailurePolicy(traffic)

    def fails(node, times=20):
        for _ in range(times):
            policy.failed(node, EVERY, "of every node", "too long")

    fails(1), fails(2)
    policy.succeeded(2)
    fails(3)
    fails(2, 19)
    with pytest.raises(PayloadError, match=f"^{UNUSABLE}: .* of every node: too long"):
        fails(2, 1)


def test_a_reason_is_logged_until_it_changes(traffic, caplog):
    policy = FailurePolicy(traffic)
    for node, reason in ((1, "a"), (1, "a"), (2, "a"), (1, "b"), (1, "a\nfurther lines")):
        policy.leave_out(node, reason, "round 3: ")
    assert traffic.failures == 5
    assert [each.message for each in caplog.records] == [
        "round 3: node 1 left out: a",
        "round 3: node 2 left out: a",
        "round 3: node 1 left out: b",
        "round 3: node 1 left out: a further lines",
    ]


def test_nothing_is_stored_for_absent_nodes(traffic):
    state = FailurePolicyState()
    policy = FailurePolicy(traffic, state=state)
    policy.leave_out(1, "x")
    policy.failed(1, EVERY, "of every node", "x")
    forget_nodes({1, 2}, state)
    assert state == FailurePolicyState()
