"""What of a run's network only a virtual clock can honour: real nodes and Ray have none."""

from __future__ import annotations

from conf.load import network_config
from conf.schema import Config, ConfigError, NetworkConfig


def expect_real_time(config: Config) -> None:
    """Raise `ConfigError`, one line, for a network that nodes in real time would not heed."""
    if said := only_virtual(config.network):
        raise ConfigError(
            f"these nodes' time is real, and nothing emulates {said}; `python run.py` has a "
            "virtual clock"
        )


def only_virtual(network: NetworkConfig) -> str:
    """Return what makes a network other than the ideal one, and what to give; "" for nothing.

    Left out are keys that others make of no effect: how long nobody waits, when nobody comes back.
    """
    ideal = network_config("ideal")
    without = {"waiting_seconds"} if network.waiting == "none" else set[str]()
    without |= set() if network.crash else {"rejoin_seconds"}
    keys = [key for key in vars(ideal) if key not in without]
    asked = [key for key in keys if getattr(network, key) != getattr(ideal, key)]
    if not asked:
        return ""
    words = ", ".join(f"network.{key}={_word(getattr(network, key))}" for key in asked)
    instead = "network=ideal"
    if len(asked) == 1 and asked != ["classes"]:
        instead = f"network.{asked[0]}={_word(getattr(ideal, asked[0]))}"
    return f"{words}: give {instead}"


def _word(value: object) -> str:
    """Write a value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(value) + "}"
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)
