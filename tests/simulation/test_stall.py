"""Nobody waits for nodes, or replies, that will never come."""

import itertools
import threading
from functools import partial

import pytest
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation import stall
from simulation.clock import Ideal, VirtualClock
from simulation.errors import EngineError
from simulation.grid import LocalGrid
from simulation.stall import MissingNodesError


class Silent:
    """A pool without a node that is ever asked."""

    def put(self, message, **how):
        """Take a message."""

    def tend(self):
        """Nobody is at work."""


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


@settings(deadline=None)
@given(nodes=st.integers(1, 9), least=st.integers(0, 9), drawn=st.integers(0, 9))
def test_a_strategy_of_flowers_that_wants_more_nodes_than_there_are_ends(nodes, least, drawn):
    """It samples with this function, which waits for ever and says so once a second."""
    if (wanted := max(least, drawn)) > nodes:
        with pytest.raises(MissingNodesError, match=rf"waits for {wanted} .* --nodes {wanted} "):
            sample_nodes(grid_of(nodes), least, drawn)
    else:
        assert len(sample_nodes(grid_of(nodes), least, drawn)[0]) == drawn


def test_a_loop_of_somebodys_own_ends(hurry):
    grid = grid_of(1)
    with pytest.raises(MissingNodesError, match=r"in vain for 540 s: with 1 node, .*--nodes"):
        repeat(grid.get_node_ids)


def test_a_loop_for_a_reply_that_is_lost_ends(hurry):
    grid = grid_of(2)
    with pytest.raises(EngineError, match="asks for nodes or replies in vain"):
        repeat(grid.pull_messages, ["1-1"])


def test_who_sends_between_two_looks_does_not_wait(hurry):
    grid = grid_of(2)
    for _ in range(5 * stall.ASKS):
        grid.get_node_ids()
        grid.push_messages([])


def test_who_waits_for_a_moment_does_not_wait_for_ever(hurry):
    grid = grid_of(2, Ideal(join_seconds=5.0))
    for second in range(5 * stall.ASKS):
        grid.get_node_ids()
        grid.pull_before([], second)


def test_who_computes_between_two_looks_does_not_wait(hurry, monkeypatch):
    cpu = itertools.count()
    monkeypatch.setattr(stall.time, "process_time", lambda: next(cpu) * stall.SECONDS / 5)
    for _ in range(5):
        repeat(grid_of(1).get_node_ids)


def test_who_only_shows_that_it_waits_waits(monkeypatch, said):
    """A spinner's thread, beside a loop that asks every three seconds."""
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


def test_who_waits_after_it_has_computed_waits(hurry, monkeypatch):
    cpu = itertools.chain((second * 20 for second in range(30)), itertools.repeat(600))
    monkeypatch.setattr(stall.time, "process_time", lambda: next(cpu))
    grid = grid_of(1)
    for _ in range(3):
        repeat(grid.get_node_ids)
    with pytest.raises(MissingNodesError, match="in vain"):
        repeat(grid.get_node_ids)


def test_other_threads_may_look_as_often_as_they_like_and_one_line_says_so(hurry, said):
    grid, looks = grid_of(2), []

    def look():
        looks.extend(grid.get_node_ids() for _ in range(5 * stall.ASKS))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert len(looks) == 5 * stall.ASKS
    assert len(said) == 1
    assert "in vain for 540 s: with 2 nodes" in said[0]


def test_it_is_said_before_the_run_ends(monkeypatch, said):
    seconds = itertools.count()
    monkeypatch.setattr(stall.time, "monotonic", lambda: next(seconds))
    grid = grid_of(2)
    for _ in range(int(stall.SECONDS)):
        grid.get_node_ids()
    assert len(said) == 1
    assert f"in vain for {stall.SAID:.0f} s" in said[0]
    with pytest.raises(MissingNodesError):
        grid.get_node_ids()
