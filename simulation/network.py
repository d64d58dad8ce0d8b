"""The network of a simulation: links and devices. Reads the named networks of conf/network/.

This module uses the standard library alone: the configuration of a real device has it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "conf" / "network"
WAITING = ("none", "uniform", "exponential", "fixed")


@dataclass
class DeviceClass:
    """A share of the nodes that computes `speed` times as fast as the reference device.

    Raises `ValueError` for numbers that are not above 0.
    """

    share: float = 1.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("share", "speed"):
            _expect_above("network.classes", name, getattr(self, name))


@dataclass
class Network:
    """Links and devices of the virtual clock. A bandwidth of None is unlimited.

    `up_mbps`, `down_mbps`: Mbit/s of one node's own link; `server_mbps`: Mbit/s of the server's
    link, each way; `latency_ms`: milliseconds, one way; `seconds_per_step`: seconds of one local
    step on the reference device; `encoding_seconds`: seconds in which the reference device encodes
    one update; `loss`: the share of replies that never arrive, drawn from (run seed, node, number
    of replies that the node has sent); the run then needs a time-out. `waiting`: how long a device
    does other things before it answers: none, fixed, uniform (0 to 2 T) or exponential, with the
    mean T = `waiting_seconds`, longer on slower devices. `crash`: the probability that a device
    crashes after a reply; it loses its state, and is gone for ever or for `rejoin_seconds`.
    `join_seconds`: each device joins at a random time, at most so many seconds after the start.
    Flower's own strategies support neither crashes nor late joins. `classes`: device classes by
    name, whose shares add up to 1; without classes all nodes are reference devices.

    Raises `ValueError` for values out of bounds.
    """

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

    def __post_init__(self) -> None:
        for name in ("up_mbps", "down_mbps", "server_mbps", "rejoin_seconds"):
            if (value := getattr(self, name)) is not None:
                _expect_above("network", name, value)
        for name in ("latency_ms", "seconds_per_step", "encoding_seconds", "waiting_seconds"):
            _expect_from(name, getattr(self, name))
        _expect_from("join_seconds", self.join_seconds)
        for name in ("loss", "crash"):
            _expect_from(name, getattr(self, name), below=1.0)
        if self.waiting not in WAITING:
            choices = ", ".join(WAITING)
            raise ValueError(f"network.waiting must be one of {choices}, not {self.waiting}")
        shares = [each.share for each in self.classes.values()]
        if shares and abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"the shares of network.classes must add up to 1, not {sum(shares):g}")


def network_named(name: str) -> Network:
    """Return the network of conf/network/NAME.yaml; `ValueError` if there is no such file."""
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in names:
        raise ValueError(f"there is no network {name}; there are: {', '.join(names)}")
    values = _values(name)
    classes = {key: DeviceClass(**value) for key, value in values.pop("classes", {}).items()}
    return Network(**values, classes=classes)


def _values(name: str) -> dict[str, Any]:
    """Return a file's values; the values of the files in its defaults list are the defaults."""
    import yaml  # type: ignore[import-untyped]

    own: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    merged: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        merged |= _values(base)
    return merged | own


def _expect_above(group: str, name: str, value: Any) -> None:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{group}.{name} must be a number above 0, not {value!r}")


def _expect_from(name: str, value: Any, below: float = math.inf) -> None:
    if not (isinstance(value, int | float) and 0 <= value < below):
        bound = "" if below == math.inf else f", below {below:g}"
        raise ValueError(f"network.{name} must be a number of at least 0{bound}, not {value!r}")
