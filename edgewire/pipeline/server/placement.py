"""Assigns the segments of a cut model to nodes, and replaces nodes that have left or fail."""

import math
from collections import Counter
from logging import getLogger

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.node_names import called
from edgewire.strategy.ordered_grid import OrderedGrid

log = getLogger("edgewire")


class Placement:
    """Assigns a node to each segment; spare nodes take over from nodes that have left or fail.

    `holders`: the node of each segment. The list is empty at first, and this class changes it.
    `failed`: by node, how often a segment was taken from it. Spare nodes with fewer failures are
    used first. Raises `PayloadError` if there are fewer nodes than segments, and no further nodes
    will appear.
    """

    def __init__(
        self,
        grid: OrderedGrid,
        segments: int,
        holders: list[int | None],
        failed: Counter[int],
    ) -> None:
        self._grid, self._nodes, self._failed = grid, holders, failed
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
        if len(nodes) > segments:
            log.warning(
                "%d of %d nodes hold no segment: they train nothing until they replace a node",
                len(nodes) - segments,
                len(nodes),
            )
        return nodes[:segments]

    def node(self, segment: int) -> int | None:
        """Return the node of a segment; None if the segment has no node."""
        return self._nodes[segment]

    def replace(self, segment: int, *, fails: bool = False) -> bool:
        """Assign a segment to a spare node; return whether its node has changed.

        If there is no spare node, the segment stays with its node as long as this node is
        available. `fails`: True if the node is available, but its replies are unusable.
        """
        here, before = list(self._grid.get_node_ids()), self._nodes[segment]
        if fails and before is not None:
            self._failed[before] += 1
        free = [node for node in here if node not in self._nodes]
        if free:
            node = self._nodes[segment] = min(free, key=self._failed.__getitem__)
            was = "no node" if before is None else called(before)
            log.warning("segment %d: %s takes over from %s", segment, called(node), was)
        elif before is not None and before not in here:
            self._nodes[segment] = None
            log.warning("segment %d waits for a node", segment)
        return self._nodes[segment] != before

    @property
    def next_look(self) -> float:
        """The value of `now` at which to look for nodes again; infinity if no node is missing."""
        return self._grid.next_look if None in self._nodes else math.inf

    def find(self) -> list[int]:
        """Assign spare nodes to segments without a node; return these segments."""
        missing = [segment for segment, node in enumerate(self._nodes) if node is None]
        return [segment for segment in missing if self.replace(segment)]

    def missing(self) -> str:
        """Return a text for an error message that names the segments without a node."""
        waiting = [str(i) for i, node in enumerate(self._nodes) if node is None]
        return (
            f"segment {', '.join(waiting)} waits for a node" if waiting else "nothing is under way"
        )
