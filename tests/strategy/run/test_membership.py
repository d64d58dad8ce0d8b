"""Which of the nodes on a SuperLink take part in a run."""

from types import SimpleNamespace

import pytest

from edgewire.compression.flower import node_names
from edgewire.strategy.run import membership
from edgewire.strategy.run.membership import MembershipGrid
from tests.compression.flower.fleet import Fleet


def taking_part(listings, most):
    """Return the nodes that take part after each listing; they registered in order 9, 3, 7, 5."""
    grid = MembershipGrid(Fleet(listings), 1, most)
    return [list(grid.get_node_ids()) for _ in listings]


@pytest.mark.parametrize(
    ("listings", "part"),
    [
        ([[3, 5], [3, 5, 7], [3, 5, 7, 9]], [[3, 5], [3, 5], [3, 5]]),
        ([[3], [3, 7], [9, 3, 7]], [[3], [3, 7], [3, 7]]),
        ([[3, 5, 7], [5, 7], [5, 7]], [[3, 7], [7, 5], [7, 5]]),  # a place becomes free
        # A returning node gets its place back.
        ([[3, 5], [3, 7], [3, 5, 7]], [[3, 5], [3, 7], [3, 5]]),
        ([[3, 5], [7], [7, 9]], [[3, 5], [7], [9, 7]]),
        # The node that has a place keeps it.
        ([[3, 5], [3, 7], [3, 7, 9]], [[3, 5], [3, 7], [3, 7]]),
    ],
)
def test_at_most_the_given_number_of_nodes_takes_part(listings, part):
    assert taking_part(listings, 2) == part


def test_without_a_number_all_take_part():
    assert taking_part([[3], [3, 5, 7, 9], [5]], None) == [[3], [9, 3, 7, 5], [5]]


def test_spare_nodes_and_absent_nodes_are_named_once(caplog):
    grid = MembershipGrid(Fleet([[3], [3, 7], [3, 7], [3], [7], [3, 7]]), 1, 1)
    said = []
    for _ in range(6):
        caplog.clear()
        grid.get_node_ids()
        said.append(caplog.messages)
    surplus = "node 7 takes no part unless one goes: there are nodes=1"
    gone = "node 3 has left: the run continues with 1"
    assert said == [[], [surplus], [], [], [gone], [surplus]]


def test_a_spare_node_is_named(caplog, monkeypatch):
    names = {3: "", 7: "cellar\n"}
    there = [SimpleNamespace(node_id=n, name=names[n], registered_at=str(n)) for n in names]
    monkeypatch.setattr(Fleet, "get_nodes", lambda grid: there, raising=False)
    monkeypatch.setattr(node_names, "NAMES", {})
    MembershipGrid(Fleet([[3, 7]]), 1, 1).get_node_ids()
    said = "node 7 (cellar ) takes no part unless one goes: there are nodes=1"
    assert caplog.messages == [said]


def test_a_resumed_run_keeps_its_nodes():
    before = MembershipGrid(Fleet([[5, 7]]), 1, 2)
    before.get_node_ids()
    after = MembershipGrid(Fleet([[3, 5, 7, 9], [9, 5]]), 2, 2)
    after.load(before.state(done=4))
    assert list(after.get_node_ids()) == [7, 5]
    assert list(after.get_node_ids()) == [9, 5]


@pytest.fixture
def hurry(monkeypatch):
    """Advance the clock by 1.5 seconds at each reading, so that repeated calls count as waiting."""
    seconds = iter(range(1000))
    monkeypatch.setattr(membership.time, "monotonic", lambda: 1.5 * next(seconds))


def test_a_strategy_that_waits_for_nodes_logs_this_once(hurry, caplog):
    grid = MembershipGrid(Fleet([[3]]), 1, 2)
    for _ in range(100):
        grid.get_node_ids()
    (said,) = caplog.messages
    assert said.startswith("the strategy waits for more nodes than the 1 that take part")


def test_a_strategy_that_sends_between_two_calls_does_not_wait(hurry, caplog):
    fleet = Fleet([[3, 5]])
    fleet.push_messages = fleet.pull_messages = lambda messages: []
    grid = MembershipGrid(fleet, 1, 2)
    for turn in range(5 * membership.ASKS):
        grid.get_node_ids()
        grid.push_messages([]) if turn % 2 else grid.pull_messages([])
    assert not caplog.messages
