"""The options that limit unusual updates at the server."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Screening:
    """Options that limit updates and weights; None switches a limit off.

    `refuse`: an update is left out if its L2 norm exceeds `refuse` times the usual norm. `clip`: an
    update whose norm exceeds `clip` times the usual norm is scaled down to this limit. `weight`: a
    node's weight is at most `weight` times the usual weight. `statistics`: an update is left out if
    its running statistics of BatchNorm are too far from those of the other nodes. The limit is
    `statistics` times the usual change of statistics in one update (`StatisticsScreen`). If the
    distance exceeds `clip` times this change, the statistics are moved to this limit. `equal`: all
    nodes have the same weight.

    The usual weight is the median of the weights that the nodes sent last. The usual norm is the
    largest median so far of the norms of the nodes' last updates. It does not decrease, because
    even late in a run a mini-batch can cause an update as large as at the beginning. Raises
    `ValueError` for factors below 1.
    """

    refuse: float | None = 100.0
    statistics: float | None = 5.0
    clip: float | None = None
    weight: float | None = 10.0
    equal: bool = False

    def __post_init__(self) -> None:
        for name in ("refuse", "statistics", "clip", "weight"):
            factor = getattr(self, name)
            number = isinstance(factor, int | float) and 1 <= factor < math.inf
            if factor is not None and not number:
                raise ValueError(f"screen.{name} must be a number of at least 1, not {factor!r}")
