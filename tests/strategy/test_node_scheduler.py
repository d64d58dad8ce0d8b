"""An asynchronous server chooses the nodes that get messages and the nodes that rest."""

import pytest

from edgewire.compression.flower.server.failure_policy import MAX_CONSECUTIVE_FAILURES
from edgewire.compression.flower.server.session import forget_nodes
from edgewire.strategy.node_scheduler import LONGEST, BackoffScheduler


@pytest.fixture
def turns():
    made = BackoffScheduler()
    assert made.add([1, 2, 3]) == [1, 2, 3]
    return made


def test_nodes_are_new_once(turns):
    assert turns.add([3, 4]) == [4]
    assert turns.known == {1, 2, 3, 4}
    turns.known.discard(3)
    assert turns.add([3, 4]) == [3]


def test_a_nodes_messages_are_numbered(turns):
    assert [turns.next(node) for node in (1, 2, 1, 1)] == [1, 1, 2, 3]


def test_a_node_that_keeps_failing_rests_longer_and_longer(turns):
    """After its 1st, 2nd, 3rd, ... failure a node rests for 0, 1, 3, 7, ... updates per node."""
    rests = []
    for failed in range(1, 11):
        at = 0
        if turns.should_wait(1, 0, failed, None):
            while turns.ready(at, idle=False) != [1]:
                at += 1
        rests.append(at)
    expected = [3 * (min(2**failures, LONGEST) - 1) for failures in range(10)]
    assert rests == expected
    assert not turns.should_wait(2, 0, 0, None)


def test_an_idle_server_asks_resting_nodes(turns):
    assert turns.should_wait(1, 10, 2, None)
    assert turns.ready(10, idle=False) == []
    assert turns.ready(10, idle=True) == [1]
    assert turns.ready(10, idle=True) == []


def test_a_node_that_is_too_far_ahead_rests(turns):
    for node, count in ((1, 5), (2, 2), (3, 2)):
        for _ in range(count):
            turns.next(node)
    assert [turns.should_wait(node, 9, 0, 2.0) for node in (1, 2, 3)] == [True, False, False]
    assert turns.ready(12, idle=False) == [1]


def test_nothing_is_stored_for_absent_nodes(turns):
    for node in (1, 2, 3):
        turns.next(node)
        turns.should_wait(node, 0, MAX_CONSECUTIVE_FAILURES, None)
    forget_nodes({1, 2, 3}, turns)
    assert turns == BackoffScheduler()
