"""The server's state for a cut model: unanswered tasks, placement, snapshots, losses."""

from collections import Counter, deque
from dataclasses import dataclass, field

from edgewire.pipeline.server.activations import ActivationStore
from edgewire.pipeline.server.link_traffic import Links, Opened
from edgewire.pipeline.server.schedule import Task
from edgewire.pipeline.server.snapshots import SnapshotsState
from edgewire.strategy.base import ServerState


@dataclass
class UnderWay:
    """An unanswered task with its payloads, so that it can be sent to another node."""

    task: Task
    arrays: dict[str, bytes]
    copy: str  # the copy of the segment that the reply must hold: "", "weights" or "all"
    message_id: str = ""  # "": not sent
    number: int = 0
    when: float = 0.0  # the grid's `now` when it was sent
    reply: Opened | None = None
    lost: bool = False  # its input was lost, so it cannot be sent


@dataclass
class PipelineState(ServerState):
    """The state of a run with a cut model, as a checkpoint holds it.

    - By segment: `under_way`: the segment's unanswered tasks. `assignments`: how often the server
      has given the segment to a node. `fresh`: True if the next message must hold a copy of the
      segment. `holders`: the segment's node.
    - `failed`: by node, how often a segment was taken from it.
    - `accused`: by (segment, neighbouring segment), the number of consecutive payloads of the
      segment that the neighbour could not use.
    - `sent`, `done`: those of `PipelineSchedule`.
    - `losses`, `errors`: the losses, and the errors of synthetic gradients, since the last
      evaluation.
    - `rates`: the learning rate of each mini-batch.
    """

    under_way: list[deque[UnderWay]] = field(default_factory=list)
    assignments: list[int] = field(default_factory=list)
    fresh: list[bool] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    holders: list[int | None] = field(default_factory=list)
    failed: Counter[int] = field(default_factory=Counter)
    accused: Counter[tuple[int, int]] = field(default_factory=Counter)
    sent: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    store: ActivationStore = field(default_factory=ActivationStore)
    copies: SnapshotsState = field(default_factory=SnapshotsState)
    links: Links = field(default_factory=Links)
    now: float = 0.0  # the grid's `now` when this state was saved

    def begin(self, segments: int) -> None:
        """Begin without any task."""
        self.under_way = [deque() for _ in range(segments)]
        self.assignments = [0] * segments
        self.fresh = [True] * segments
        self.links.begin(segments)
