"""The number of a grid's nodes, and how long a server waits for more nodes."""

import math

import pytest

from edgewire.conf.network import Network
from edgewire.simulation.clock import VirtualClock
from edgewire.strategy import ordered_grid
from edgewire.strategy.ordered_grid import LOOK_AGAIN, OrderedGrid, count_nodes
from tests.compression.flower.fleet import Fleet
from tests.grids import grid_of


@pytest.mark.parametrize("listings", [[[], [], [3], [3, 7], [3, 7]], [[3, 7], [3, 7]]])
def test_counting_waits_until_no_more_nodes_come(monkeypatch, listings):
    monkeypatch.setattr(ordered_grid.time, "sleep", lambda seconds: None)
    assert count_nodes(Fleet(listings)) == 2


def test_a_local_grids_nodes_are_counted_at_once(monkeypatch):
    monkeypatch.setattr(ordered_grid.time, "sleep", lambda seconds: pytest.fail("slept"))
    assert count_nodes(grid_of()) == 3


def test_in_real_time_the_server_looks_again_for_late_nodes(monkeypatch):
    monkeypatch.setattr(ordered_grid.time, "sleep", lambda seconds: None)
    grid = OrderedGrid(Fleet([[], [], [3]]))
    before = grid.now
    assert LOOK_AGAIN <= grid.next_look - before < 2 * LOOK_AGAIN
    assert grid.wait_for_nodes() == [3]


def test_on_a_virtual_clock_the_server_waits_for_the_first_node():
    clock = VirtualClock(Network(join_seconds=10.0))
    first = min((clock.joined(node), node) for node in (1, 2, 3))
    grid = OrderedGrid(grid_of(clock=VirtualClock(Network(join_seconds=10.0))))
    assert grid.next_look == first[0] > 0
    assert grid.wait_for_nodes() == [first[1]]
    assert grid.now == grid.virtual_seconds == first[0]
    assert sorted(grid.wait_for_nodes(3)) == [1, 2, 3]
    assert len(grid.wait_for_nodes(4)) == 3  # no more will join


def test_the_server_does_not_wait_for_nodes_that_never_join():
    grid = OrderedGrid(grid_of(nodes=0))
    assert grid.next_look == math.inf
    assert grid.wait_for_nodes() == []
