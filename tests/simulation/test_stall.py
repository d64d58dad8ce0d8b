"""A wait for nodes or replies that will never come ends with an error."""

import itertools
import threading
from functools import partial

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


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(stall, "log", lambda level, text, *values: lines.append(text % values))
    return lines


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
    with pytest.raises(MissingNodesError, match=rf"in vain for 540 s: with {nodes} node.*--nodes"):
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


def test_an_app_that_computes_between_two_calls_does_not_wait(hurry, monkeypatch):
    cpu = itertools.count()
    monkeypatch.setattr(stall.time, "process_time", lambda: next(cpu) * stall.SECONDS / 5)
    for _ in range(5):
        repeat(grid_of(1).get_node_ids)


def test_an_app_with_a_spinner_is_waiting(monkeypatch, said):
    """An app waits even if a spinner's thread uses CPU time beside its loop of requests."""
    seconds = itertools.count()
    monkeypatch.setattr(stall.time, "monotonic", lambda: 3 * next(seconds))
    cpu = itertools.count()
    monkeypatch.setattr(stall.time, "process_time", lambda: next(cpu) / 20)
    asks = partial(repeat, grid_of(1).get_node_ids)
    asks()
    asks()
    with pytest.raises(MissingNodesError, match="in vain for 60 s"):
        asks()
    assert len(said) == 1


def test_an_app_that_waits_after_computing_is_waiting(hurry, monkeypatch):
    cpu = itertools.chain((second * 20 for second in range(29)), itertools.repeat(600))
    monkeypatch.setattr(stall.time, "process_time", lambda: next(cpu))
    grid = grid_of(1)
    for _ in range(3):
        repeat(grid.get_node_ids)
    with pytest.raises(MissingNodesError, match="in vain"):
        repeat(grid.get_node_ids)


def test_other_threads_may_poll_freely_and_one_line_is_logged(hurry, said):
    grid, looks = grid_of(2), []

    def look():
        looks.extend(grid.get_node_ids() for _ in range(5 * stall.ASKS))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert len(looks) == 5 * stall.ASKS
    assert len(said) == 1
    assert "in vain for 540 s: with 2 nodes" in said[0]


def test_a_stall_is_logged_before_the_run_ends(monkeypatch, said):
    seconds = itertools.count()
    monkeypatch.setattr(stall.time, "monotonic", lambda: next(seconds))
    grid = grid_of(2)
    for _ in range(int(stall.SECONDS)):
        grid.get_node_ids()
    assert len(said) == 1
    assert f"in vain for {stall.SAID:.0f} s" in said[0]
    with pytest.raises(MissingNodesError):
        grid.get_node_ids()
