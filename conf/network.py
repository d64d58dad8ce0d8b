"""The network of a simulation: links and devices, and the named networks of conf/network/."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewire.conf.option_group import bounded, expect_within_bounds

FOLDER = Path(__file__).with_name("network")
WAITING = ("none", "uniform", "exponential", "fixed")


@dataclass
class DeviceClass:
    """A class of devices: its share of the nodes, and its speed.

    A device of this class computes `speed` times as fast as the reference device. Both numbers must
    be above 0.
    """

    share: float = bounded(1.0, above=0)
    speed: float = bounded(1.0, above=0)


@dataclass
class Network:
    """The simulated links and devices. A bandwidth of None is unlimited.

    The reference device is the device that `seconds_per_step` and `encoding_seconds` describe.

    `up_mbps`, `down_mbps`: Mbit/s from and to one node on its own link; `server_mbps`: Mbit/s of
    the server's link in each direction; `latency_ms`: milliseconds in one direction;
    `seconds_per_step`: seconds of one local step on the reference device; `encoding_seconds`:
    seconds in which the reference device encodes one update; `loss`: the share of replies that
    never arrive. The run then needs a `timeout`. The run's seed, the node and the number of the
    node's replies so far determine which replies are lost. `waiting`: the distribution of the time
    that a device spends on other things before it replies: none, fixed, uniform (0 to 2 T) or
    exponential. The mean T is `waiting_seconds` on the reference device, and longer on slower
    devices. `crash`: the probability that a device crashes after a reply. The device loses its
    state, and comes back after `rejoin_seconds`, or never if this is None. `join_seconds`: each
    device joins at a random time, at most this many seconds after the start. Flower's own
    strategies support neither crashes nor late joins. `classes`: device classes by name. Their
    shares add up to 1. Without classes all nodes are reference devices.

    Raises `ValueError` for values out of bounds.
    """

    up_mbps: float | None = bounded(None, above=0)
    down_mbps: float | None = bounded(None, above=0)
    server_mbps: float | None = bounded(None, above=0)
    latency_ms: float = bounded(0.0, at_least=0)
    seconds_per_step: float = bounded(0.0, at_least=0)
    encoding_seconds: float = bounded(0.0, at_least=0)
    loss: float = bounded(0.0, at_least=0, below=1)
    waiting: str = bounded("none", one_of=WAITING)
    waiting_seconds: float = bounded(1.0, at_least=0)
    crash: float = bounded(0.0, at_least=0, below=1)
    rejoin_seconds: float | None = bounded(None, above=0)
    join_seconds: float = bounded(0.0, at_least=0)
    classes: dict[str, DeviceClass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect_within_bounds("network.", self)
        if not isinstance(self.classes, dict) or not all(
            isinstance(each, DeviceClass) for each in self.classes.values()
        ):
            raise ValueError("network.classes must be device classes by name: {slow: {speed: 0.1}}")
        for name, each in self.classes.items():
            expect_within_bounds(f"network.classes.{name}.", each)
        shares = [each.share for each in self.classes.values()]
        if shares and abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"the shares of network.classes must add up to 1, not {sum(shares):g}")


def transfer_seconds(size: float, mbps: float | None) -> float:
    """Return the seconds in which a link carries bytes; 0 without a limit (None)."""
    return size * 8 / (mbps * 1e6) if mbps else 0.0


def network_named(name: str) -> Network:
    """Return the network of conf/network/NAME.yaml. Raises `ValueError` if it is missing."""
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in names:
        raise ValueError(f"there is no network {name}; there are: {', '.join(names)}")
    values = _values(name)
    classes = {key: DeviceClass(**value) for key, value in values.pop("classes", {}).items()}
    return Network(**values, classes=classes)


def only_virtual(network: Network) -> str:
    """Return the options that act on a virtual clock alone, as overrides; "" for none.

    These options differ from `network=ideal`. Options without an effect are left out:
    `waiting_seconds` with `waiting=none`, and `rejoin_seconds` without `crash`.
    """
    ideal, asked = network_named("ideal"), []
    unused = {"waiting_seconds": network.waiting == "none", "rejoin_seconds": not network.crash}
    for key, default in vars(ideal).items():
        value = getattr(network, key)
        if value != default and not unused.get(key):
            if isinstance(value, dict):
                value = "{" + ",".join(value) + "}"
            text = f"{value:g}" if isinstance(value, float) else value
            asked.append(f"network.{key}={text}")
    return f"{', '.join(asked)}: give network=ideal" if asked else ""


def _values(name: str) -> dict[str, Any]:
    """Return a network file's values; the files in its `defaults` list give those that it lacks."""
    import yaml  # type: ignore[import-untyped]

    own: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    merged: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        merged |= _values(base)
    return merged | own
