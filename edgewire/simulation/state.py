"""The state of a local run, which a checkpoint contains and a resumed run loads."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from edgewire.simulation.clock import ClockState, Journey
from edgewire.simulation.other_link_clock import BandwidthModelState


@dataclass
class GridState:
    """The state of a run in the local engine after all replies under way have been computed.

    `number`: the number of messages so far. `count`: the number of messages to each node. `sent`:
    message id -> its journey, for replies without an arrival time yet. `queues`: the ids of a
    node's messages in `sent`, in order. `bounds`: a heap of lower bounds of the arrival times of
    replies. `early`: computed replies without an arrival time yet. `arrivals`: replies with their
    arrival times. `lives`: for each node, the number of its crashes before its last message.
    `nodes`: the nodes' states.
    """

    number: int = 0
    count: Counter[int] = field(default_factory=Counter)
    sent: dict[str, Journey] = field(default_factory=dict)
    queues: dict[int, deque[str]] = field(default_factory=dict)
    bounds: list[tuple[float, int, str]] = field(default_factory=list)
    early: dict[str, Message] = field(default_factory=dict)
    arrivals: dict[str, tuple[float, Message]] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    clock: ClockState = field(default_factory=ClockState)
    line: BandwidthModelState | None = None
    nodes: dict[int, RecordDict] = field(default_factory=dict)
