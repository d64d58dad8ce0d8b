"""Nodes in an order that every engine agrees on."""

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
