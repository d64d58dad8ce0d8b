"""The options with which a server limits unusual updates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .validation import bounded, expect_bounds


@dataclass
class Screening:
    """Options that limit a node's updates and its weight in the mean; None switches a limit off.

    `refuse`: the server does not use an update whose L2 norm exceeds `refuse` times the usual norm.
    `clip`: the server scales an update down to `clip` times the usual norm if its norm exceeds this
    limit. `weight`: a node's weight is at most `weight` times the usual weight. `statistics`: the
    server computes the distance of an update's BatchNorm statistics from the median of the nodes'
    statistics. The server does not use the update if this distance exceeds `statistics` times the
    usual change of a node's statistics (explained below). If the distance exceeds `clip` times the
    usual change, the server reduces the distance to this limit. `equal`: if true, all nodes have
    the same weight.

    The usual weight is the median of the nodes' last weights. For the usual norm, the server
    repeatedly computes the median of the norms of the nodes' last updates. The usual norm is the
    largest of these medians so far. It never decreases, because even late in a run a mini-batch can
    cause an update as large as at the beginning. The usual change is computed in the same way, from
    the distances between the statistics that nodes got and those that they returned
    (`StatisticsScreen`). Raises `ValueError` for factors below 1.
    """

    refuse: float | None = bounded(100.0, at_least=1)
    statistics: float | None = bounded(5.0, at_least=1)
    clip: float | None = bounded(None, at_least=1)
    weight: float | None = bounded(10.0, at_least=1)
    equal: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            if (value := getattr(self, each.name)) is not None:
                expect_bounds(f"screen.{each.name}", value, each.metadata)
