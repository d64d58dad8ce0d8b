"""Means over all nodes of vectors beside the model, such as SCAFFOLD's control variates."""

import math
from collections.abc import Mapping

import numpy as np

from edgewire.compression.flower.native_tensors import Arrays, LocalVectors


class NodeMeans:
    """The server's vectors of which each is the weighted mean c of the vectors c_i of all nodes.

    A node that trains changes c_i to c_i', and reports c + share (c_i' - c_i). Reports may be lost,
    refused or late. So with the weights w_i and the set U of the nodes whose reports are used, the
    new c is c + sum over U of w_i (c_i' - c_i) / W, where W is the weight of all nodes. In SCAFFOLD
    (Karimireddy et al. 2020, Algorithm 1) this is line 17. A node without a used report so far has
    c_i = 0. It counts in W with the mean weight of the other nodes, and c is scaled when its weight
    becomes known. A node keeps the weight of its first used report, so that the same weight adds
    and later removes a c_i.

    `vectors`: their names, the share, and the number of all nodes. `weights`: the nodes' weights by
    node, which `update` extends.
    """

    def __init__(self, vectors: LocalVectors, weights: dict[int, float]) -> None:
        self._vectors, self._weights = vectors, weights
        self.names = vectors.names if vectors.nodes else ()

    def weight_of(self, node: int, weight: float) -> float:
        """Return a node's weight, which is `weight` if no report of this node was used so far."""
        return self._weights.get(node, weight)

    def update(self, now: Arrays, mixed: Arrays, weights: Mapping[int, float]) -> Arrays:
        """Return the new vectors by name.

        `now`: the server's vectors. `mixed`: the means of the vectors that nodes reported, with the
        weights that `weight_of` returns. `weights`: the weights of these nodes in this round.
        """
        before = self._total()
        for node, weight in weights.items():
            self._weights.setdefault(node, weight)
        used, after = math.fsum(self._weights[node] for node in weights), self._total()
        scale, step = (before or after) / after, used / after / self._vectors.share
        changed = {}
        for name in self.names:
            old, new = now[name], mixed[name]
            if scale != 1 or step != 1:
                new = scale * old.astype(np.float64) + step * (new - old.astype(np.float64))
            changed[name] = np.asarray(new, dtype=old.dtype)
        return changed

    def _total(self) -> float:
        """Return the weight of all nodes; 0 if no weight is known yet."""
        known = math.fsum(self._weights.values())
        missing = max(self._vectors.nodes - len(self._weights), 0)
        return known + missing * known / max(len(self._weights), 1)
