"""The state of a cut model's server: messages under way, placement, snapshots, losses."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from strategy.base import ServerState
from strategy.pipeline.activations import StoreState
from strategy.pipeline.schedule import PipelineScheduleState, Task
from strategy.pipeline.snapshots import SnapshotsState
from strategy.pipeline.traffic import Links, Opened

LOST = "lost"  # in place of a message's id: its input was lost, so it cannot be sent


@dataclass
class UnderWay:
    """A task under way, with its payloads, so that another node can take the task over."""

    task: Task
    arrays: dict[str, bytes]
    copy: str  # the copy of the segment that the reply must hold: "", "weights" or "all"
    message_id: str = ""  # "": not sent
    number: int = 0
    when: float = 0.0  # when it was sent, by the grid's `now`
    reply: Opened | None = None


@dataclass
class PipelineState(ServerState):
    """The state of a cut model's run, as a checkpoint holds it.

    By segment: `under_way`, its tasks under way; `handed`, how often the server has handed it out;
    `fresh`, whether the next message must hold its copy; `hopeless`, failures in a row; `holders`,
    its node. `failed`: node -> how often a segment was taken from it. `accused`: (segment, by which
    neighbour) -> useless payloads in a row. `losses`, `errors`: since the last record. `rates`: of
    each mini-batch. `cuts`: of the model.
    """

    under_way: list[deque[UnderWay]] = field(default_factory=list)
    handed: list[int] = field(default_factory=list)
    fresh: list[bool] = field(default_factory=list)
    hopeless: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    holders: list[int | None] = field(default_factory=list)
    failed: Counter[int] = field(default_factory=Counter)
    accused: Counter[tuple[int, int]] = field(default_factory=Counter)
    flow: PipelineScheduleState = field(default_factory=PipelineScheduleState)
    store: StoreState = field(default_factory=StoreState)
    copies: SnapshotsState = field(default_factory=SnapshotsState)
    cuts: list[int] = field(default_factory=list)
    links: Links = field(default_factory=Links)
    now: float = 0.0  # the moment of this state

    def begin(self, segments: int) -> None:
        """Begin with nothing sent."""
        self.under_way = [deque() for _ in range(segments)]
        self.handed, self.hopeless = [0] * segments, [0] * segments
        self.fresh = [True] * segments
        self.links.begin(segments)

    def shift(self, by: float) -> None:
        """Add `by` seconds to all saved moments."""
        for row in self.under_way:
            for sent in row:
                sent.when += by
