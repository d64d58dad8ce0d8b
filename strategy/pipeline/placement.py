"""Who holds which segment: nodes at work, nodes to spare, segments that wait for a node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from logging import getLogger

from compression import PayloadError
from strategy.ordered_grid import OrderedGrid

log = getLogger("edgewire")


class Placement:
    """Gives each segment a node; the rest take over from those that are gone, or fail.

    `holders`: by segment, in whom they are kept; empty at first. `failed`: how often a segment was
    taken from a node that failed: the others come first.

    Raises `PayloadError` if fewer nodes than segments are there, and no more will come.
    """

    def __init__(
        self,
        grid: OrderedGrid,
        segments: int,
        holders: list[int | None] | None = None,
        failed: Counter[int] | None = None,
    ) -> None:
        self._grid = grid
        self._failed = Counter[int]() if failed is None else failed
        self._nodes: list[int | None] = [] if holders is None else holders
        if not self._nodes:
            self._nodes += self._first(segments)

    def _first(self, segments: int) -> list[int]:
        grid, nodes, before = self._grid, list[int](), -1
        while len(nodes := grid.wait_for_nodes()) < segments:
            if grid.next_look == math.inf:
                raise PayloadError(
                    f"{segments} segments need as many nodes, there are {len(nodes)}"
                )
            if len(nodes) != before:
                log.warning(
                    "%d segments wait for as many nodes: %d are there", segments, len(nodes)
                )
            before = len(nodes)
            grid.pull_before([], grid.next_look)
        return nodes[:segments]

    def node(self, segment: int) -> int | None:
        """Return who holds a segment; None while nobody does."""
        return self._nodes[segment]

    def replace(self, segment: int, *, fails: bool = False) -> bool:
        """Look for another node in place of a segment's, which stays if it is there and nobody else
        is free. Return whether it has gone. `fails`: it is there, and its replies are of no use.
        """
        here, before = list(self._grid.get_node_ids()), self._nodes[segment]
        if fails and before is not None:
            self._failed[before] += 1
        free = self._free(here)
        if free:
            self._nodes[segment] = free[0]
            log.warning("segment %d: node %d takes over from %s", segment, free[0], before)
        elif before not in here:
            self._nodes[segment] = None
            log.warning("segment %d waits for a node", segment)
        return self._nodes[segment] != before

    @property
    def next_look(self) -> float:
        """The moment of the grid's `now` at which to look for nodes again, if any is missing."""
        return self._grid.next_look if None in self._nodes else math.inf

    def find(self) -> list[int]:
        """Give nodes that are free to segments that wait; return these."""
        found = []
        for segment, node in enumerate(self._nodes):
            if node is None:
                free = self._free(self._grid.get_node_ids())
                if free:
                    self._nodes[segment] = free[0]
                    found.append(segment)
        return found

    def _free(self, here: Iterable[int]) -> list[int]:
        """Return nodes without a segment, those first that have failed least."""
        free = (node for node in here if node not in self._nodes)
        return sorted(free, key=self._failed.__getitem__)

    def missing(self) -> str:
        """Name the segments that nobody holds."""
        waiting = [str(i) for i, node in enumerate(self._nodes) if node is None]
        return (
            f"segment {', '.join(waiting)} waits for a node" if waiting else "nothing is under way"
        )
