"""The virtual clock: when a message would arrive over a node's link, and its answer come back.

    sent            received       done                arrived
      |-- latency ----|             |                     |
      |-- bytes/down -|-- compute --|-- latency + bytes/up|

Each node has a link of its own and does one thing at a time. The server's link, where it is a
limit, takes one message after another, in the order in which they were sent.
A lost answer takes its node as long as any other, and arrives never: at infinity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

NEVER = float("inf")  # when a lost answer arrives
_LOSS = 0x1055  # keeps these draws apart from others of (seed, node, number)


class DeviceClass(Protocol):
    """A share of the nodes, `speed` times as fast as the reference device."""

    share: float
    speed: float


class Network(Protocol):
    """Links and devices; the fields of `conf.schema.NetworkConfig`, in their units."""

    up_mbps: float | None
    down_mbps: float | None
    server_mbps: float | None
    latency_ms: float
    seconds_per_step: float
    loss: float

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """Device classes by name; empty: all nodes are reference devices."""


@dataclass
class Ideal:
    """A network in which nothing takes time."""

    up_mbps: float | None = None
    down_mbps: float | None = None
    server_mbps: float | None = None
    latency_ms: float = 0.0
    seconds_per_step: float = 0.0
    loss: float = 0.0
    classes: dict[str, DeviceClass] = field(default_factory=dict)


class _ServerLink:
    """Until when the server's link is busy, each way, virtual seconds."""

    def __init__(self) -> None:
        self._sending = self._receiving = 0.0

    def send(self, at: float, size: int, mbps: float | None) -> float:
        """Return when `size` bytes, given to the link at `at`, have left the server."""
        if mbps is None:
            return at
        self._sending = max(at, self._sending) + _transfer(size, mbps)
        return self._sending

    def receive(self, at: float, size: int, mbps: float | None) -> float:
        """Return when `size` bytes are in, whose sender has sent the last of them by `at`."""
        if mbps is None:
            return at
        self._receiving = max(at, self._receiving + _transfer(size, mbps))
        return self._receiving


class VirtualClock:
    """Virtual seconds since the start, and when each node is free again."""

    def __init__(self, network: Network | None = None, seed: int = 0) -> None:
        self.network: Network = network or Ideal()
        self.seed = seed
        self.now = 0.0
        self._free: dict[int, float] = {}
        self._server = _ServerLink()
        self._answers = Counter[int]()  # node -> its answers so far, on a network that loses some
        self._limits = np.cumsum([c.share for c in self.network.classes.values()])

    def speed(self, node: int) -> float:
        """Return the speed factor of a node's device class, drawn once from (seed, node)."""
        if not len(self._limits):
            return 1.0
        draw = np.random.default_rng([self.seed, node]).random()
        index = min(int(np.searchsorted(self._limits, draw, side="right")), len(self._limits) - 1)
        return list(self.network.classes.values())[index].speed

    def arrival(self, node: int, sent: float, down: int, steps: float, up: int) -> float:
        """Return when the answer to a message sent at `sent` is at the server (`NEVER`: never).

        `down`, `up`: bytes of message and answer; `steps`: local steps that were computed.
        """
        net, latency = self.network, self.network.latency_ms / 1e3
        received = latency + max(
            sent + _transfer(down, net.down_mbps), self._server.send(sent, down, net.server_mbps)
        )
        start = max(received, self._free.get(node, 0.0))
        done = start + steps * net.seconds_per_step / self.speed(node)
        sent_back = done + _transfer(up, net.up_mbps)
        if sent_back > sent:  # a network in which nothing takes time needs no memory
            self._free[node] = sent_back
        arrived = self._server.receive(sent_back + latency, up, net.server_mbps)
        return NEVER if net.loss and self._loses(node) else arrived

    def _loses(self, node: int) -> bool:
        """Draw from (seed, node, its answers so far) whether a node's next answer is lost."""
        self._answers[node] += 1
        random = np.random.default_rng([self.seed, node, self._answers[node], _LOSS])
        return bool(random.random() < self.network.loss)


def _transfer(size: int, mbps: float | None) -> float:
    return 0.0 if mbps is None else size * 8 / (mbps * 1e6)


def steps_of(metrics: Mapping[str, object]) -> float:
    """Return the local steps a reply's metrics report as `num-steps` (0 if they do not)."""
    steps = metrics.get("num-steps", 0)
    return float(steps) if isinstance(steps, int | float) else 0.0
