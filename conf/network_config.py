"""The types of the group `network`.

`edgewire.simulation.network.Network` explains the keys and checks their values. It is not imported
here: a device gets this package in the app's bundle, but has a package `simulation` of its own,
which may be older. Engines in real time refuse all values other than those of `network=ideal`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DeviceClass:
    """A class of devices: its share of the nodes, and its speed."""

    share: float = 1.0
    speed: float = 1.0


@dataclass
class Network:
    """The simulated links and devices."""

    up_mbps: float | None = None
    down_mbps: float | None = None
    server_mbps: float | None = None
    latency_ms: float = 0.0
    seconds_per_step: float = 0.0
    encoding_seconds: float = 0.0
    loss: float = 0.0
    waiting: str = "none"
    waiting_seconds: float = 1.0
    crash: float = 0.0
    rejoin_seconds: float | None = None
    join_seconds: float = 0.0
    classes: dict[str, DeviceClass] = field(default_factory=dict)
