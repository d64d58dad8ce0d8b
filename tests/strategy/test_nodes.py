"""Nodes in an order that every engine agrees on."""

import time
from types import SimpleNamespace

import pytest

from strategy import nodes
from strategy.nodes import OrderedGrid, count_nodes


class Fleet:
    """As much of a Grid as is asked: nodes that come one after the other, listed as a set."""

    def __init__(self, listings):
        self._listings = listings
        self._asked = 0

    def get_node_ids(self):
        self._asked = min(self._asked + 1, len(self._listings))
        return set(self._listings[self._asked - 1])

    def get_nodes(self):
        stamps = {9: "10:00:00.1", 3: "10:00:00.2", 7: "10:00:00.3", 5: "10:00:01.0"}
        return [SimpleNamespace(node_id=n, registered_at=stamps[n]) for n in (3, 5, 7, 9)]


def test_nodes_are_ordered_by_registration():
    grid = OrderedGrid(Fleet([[3, 7, 9], [3, 5, 7, 9]]))
    assert list(grid.get_node_ids()) == [9, 3, 7]
    assert list(grid.get_node_ids()) == [9, 3, 7, 5]
    assert grid.virtual_seconds is None


def test_a_local_grids_order_is_kept():
    fleet = SimpleNamespace(get_node_ids=lambda: range(1, 4), virtual_seconds=2.5)
    grid = OrderedGrid(fleet)
    assert grid.get_node_ids() == range(1, 4)
    assert grid.virtual_seconds == 2.5
    assert count_nodes(fleet) == 3


@pytest.mark.parametrize("listings", [[[], [], [3], [3, 7], [3, 7]], [[3, 7], [3, 7]]])
def test_counting_waits_until_no_more_nodes_come(monkeypatch, listings):
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)
    assert count_nodes(Fleet(listings)) == 2


class Remote:
    """A grid with no clock of its own, whose replies are there from poll number `ready` on."""

    def __init__(self, ready):
        self.ready = ready
        self.polls = []

    def pull_messages(self, message_ids):
        self.polls.append(message_ids)
        return iter(["reply"] if len(self.polls) >= self.ready else [])


@pytest.fixture
def naps(monkeypatch):
    """The pauses slept, on a clock that goes by them alone."""
    slept = []
    monkeypatch.setattr(nodes.time, "sleep", slept.append)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: 100 + sum(slept))
    return slept


def test_polling_ends_with_the_first_replies(naps):
    remote = Remote(ready=8)
    assert OrderedGrid(remote).pull_before(iter(["a", "b"]), float("inf")) == ["reply"]
    assert remote.polls == [["a", "b"]] * 8
    assert naps == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_polling_ends_at_the_deadline(naps):
    remote = Remote(ready=float("inf"))
    grid = OrderedGrid(remote)
    assert grid.pull_before(["a"], 100.5) == []
    assert grid.now == pytest.approx(100.5)
    assert max(naps) <= 0.25
    polls = len(remote.polls)
    assert grid.pull_before(["a"], 99.0) == []  # past: what is there is still asked for
    assert len(remote.polls) == polls + 1
    assert grid.pull_before([], float("inf")) == []


def test_polling_takes_real_time_and_no_more_than_it_may():
    grid = OrderedGrid(Remote(ready=float("inf")))
    start = grid.now
    assert grid.pull_before(["a"], start + 0.05) == []
    assert 0.05 <= time.monotonic() - start < 5  # far below what a missed deadline would take


def test_a_local_grids_own_pull_and_clock_are_used():
    local = SimpleNamespace(virtual_seconds=2.5, pull_before=lambda ids, end: [(*ids, end)])
    grid = OrderedGrid(local)
    assert grid.now == 2.5
    assert grid.pull_before(["a", "b"], 4.0) == [("a", "b", 4.0)]


def test_a_local_grid_is_tended_while_the_server_measures():
    calls = []
    OrderedGrid(SimpleNamespace(tend=lambda: calls.append(1))).tend()
    assert calls == [1]
    OrderedGrid(SimpleNamespace()).tend()  # others need none
