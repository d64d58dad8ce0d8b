"""A wait for nodes or replies that will never come ends with an error."""

import itertools
import threading

import pytest
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from hypothesis import given
from hypothesis import strategies as st

from edgewire.conf.network import Network
from edgewire.simulation import stall
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.stall import MissingNodesError


class Silent:
    """A pool whose nodes never receive a message."""

    def put(self, message, **how):
        """Ignore a message."""

    def tend(self):
        """Do nothing: no worker exists."""


def grid_of(nodes, network=None):
    return LocalGrid(Silent(), nodes, VirtualClock(network))


@pytest.fixture
def hurry(monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr(stall.time, "monotonic", lambda: stall.SECONDS * next(seconds))


def repeat(function, *arguments):
    for _ in range(stall.ASKS):
        function(*arguments)


@given(nodes=st.integers(1, 9), least=st.integers(0, 9), drawn=st.integers(0, 9))
def test_a_flower_strategy_that_needs_more_nodes_ends(nodes, least, drawn):
    """Flower's strategies sample nodes with a function that would wait for ever on its own."""
    if (wanted := max(least, drawn)) > nodes:
        with pytest.raises(MissingNodesError, match=rf"waits for {wanted} .* --nodes {wanted} "):
            sample_nodes(grid_of(nodes), least, drawn)
    else:
        assert len(sample_nodes(grid_of(nodes), least, drawn)[0]) == drawn


@pytest.mark.parametrize(
    ("nodes", "call", "given"),
    [(1, LocalGrid.get_node_ids, ()), (2, LocalGrid.pull_messages, (["1-1"],))],
)
def test_an_apps_loop_for_nodes_or_for_a_lost_reply_ends(nodes, call, given, hurry):
    with pytest.raises(MissingNodesError, match=rf"in vain for 1740 s: with {nodes} node.*--nodes"):
        repeat(call, grid_of(nodes), *given)


def test_an_app_that_sends_between_two_calls_does_not_wait(hurry):
    grid = grid_of(2)
    for _ in range(5 * stall.ASKS):
        grid.get_node_ids()
        grid.push_messages([])


def test_a_short_wait_is_no_stall(hurry):
    grid = grid_of(2, Network(join_seconds=5.0))
    for second in range(5 * stall.ASKS):
        grid.get_node_ids()
        grid.pull_before([], second)


def test_many_calls_within_a_minute_are_no_stall(monkeypatch):
    seconds = itertools.count(step=stall.SECONDS / (2 * stall.ASKS))
    monkeypatch.setattr(stall.time, "monotonic", lambda: next(seconds))
    repeat(grid_of(1).get_node_ids)


def test_other_threads_may_poll_freely(hurry):
    grid, looks = grid_of(2), []

    def look():
        looks.extend(grid.get_node_ids() for _ in range(5 * stall.ASKS))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert len(looks) == 5 * stall.ASKS
