"""The state of a local run in one dataclass: a checkpoint holds it, and a resumed run loads it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from .bandwidth_model import BandwidthModelState
from .clock import ClockState, Journey


@dataclass
class GridState:
    """The state of a run in the local engine when every message under way has been computed.

    `number`: the number of messages; `count`: the same by node; `sent`: message id -> journey;
    `queues`: a node's unhandled messages in order; `bounds`: a heap of lower bounds of the arrivals
    of replies; `early`: computed replies that are not handled yet; `arrivals`: handled replies with
    their arrival times; `lives`: the life of each node at its last message; `nodes`: their states.
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
