"""What a local run has come to, in one dataclass: who keeps it can go on with it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from .bandwidth_model import BandwidthModelState
from .clock import ClockState, Journey


@dataclass
class GridState:
    """All that a run has come to here, a moment at which every message under way was computed.

    `number`: of messages; `count` by node; `sent`: journeys by message, `queues`: a node's messages
    that are not dealt with, in order; `bounds`: a heap, before when none can arrive; `early`:
    replies computed, not yet dealt with; `arrivals`: when they are there; `lives`: which life of a
    node was sent to last; `nodes`: what they keep.
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
