"""What a cut model's server has come to: messages under way, who holds what, copies, losses."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from strategy.base import ServerState
from strategy.pipeline.activations import StoreState
from strategy.pipeline.schedule import PipelineScheduleState, Task
from strategy.pipeline.snapshots import SnapshotsState
from strategy.pipeline.traffic import Links, Opened

LOST = "lost"  # in place of a message's id: what it was to hold has been lost


@dataclass
class UnderWay:
    """A task under way: its message, and what that holds for who may have to take over."""

    task: Task
    arrays: dict[str, bytes]
    copy: str  # what is asked for of the segment
    message_id: str = ""
    number: int = 0
    when: float = 0.0  # a moment of the grid's `now`
    reply: Opened | None = None


@dataclass
class PipelineState(ServerState):
    """By segment: messages under way, how often it was handed out, whether it goes with the next
    message, failures in a row. `holders`: its node, `failed`: from whom it was taken; `accused`: by
    which segment, how often in a row; `losses` and `errors` since the last record; `cuts`: of the
    model.
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
    now: float = 0.0  # when the state was what it is

    def begin(self, segments: int) -> None:
        """Begin with nothing sent."""
        self.under_way = [deque() for _ in range(segments)]
        self.handed, self.hopeless = [0] * segments, [0] * segments
        self.fresh = [True] * segments
        self.links.begin(segments)

    def shift(self, by: float) -> None:
        """Move all moments."""
        for row in self.under_way:
            for sent in row:
                sent.when += by
