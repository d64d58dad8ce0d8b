"""Refuses network options that need a virtual clock, for engines in real time."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from omegaconf import OmegaConf

from edgewire.conf.classes import HERE
from edgewire.conf.network import Network
from edgewire.conf.schema import Config, ConfigError


def expect_real_time(config: Config) -> None:
    """Raise `ConfigError` for network options that have an effect only on a virtual clock."""
    if said := only_virtual(config.network):
        raise ConfigError(
            f"these nodes' time is real, and nothing emulates {said}; `python run.py` has a "
            "virtual clock"
        )


def only_virtual(network: Network) -> str:
    """Return a text for an error message: which network options differ from `network=ideal`.

    The text also says what to give instead. It is "" if no option differs. Options without an
    effect are left out: `waiting_seconds` with `waiting=none`, and `rejoin_seconds` without
    `crash`.
    """
    ideal = _ideal()
    without = {"waiting_seconds"} if network.waiting == "none" else set[str]()
    without |= set() if network.crash else {"rejoin_seconds"}
    keys = [key for key in vars(ideal) if key not in without]
    asked = [key for key in keys if getattr(network, key) != getattr(ideal, key)]
    if not asked:
        return ""
    text = ", ".join(f"network.{key}={_word(getattr(network, key))}" for key in asked)
    instead = "network=ideal"
    if len(asked) == 1 and asked != ["classes"]:
        instead = f"network.{asked[0]}={_word(getattr(ideal, asked[0]))}"
    return f"{text}: give {instead}"


@cache
def _ideal() -> Network:
    """Return the network of conf/network/ideal.yaml."""
    return Network(**cast(dict[str, Any], OmegaConf.load(HERE / "network" / "ideal.yaml")))


def _word(value: object) -> str:
    """Return a value as the user would write it on the command line."""
    if isinstance(value, dict):
        return "{" + ",".join(value) + "}"
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)
