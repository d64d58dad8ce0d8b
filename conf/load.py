"""From Hydra's config to the JSON in Flower's `run_config`, and back to typed objects."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.check import check
from conf.schema import Config, ConfigError, NetworkConfig

HERE = Path(__file__).parent


def to_config(composed: DictConfig) -> Config:
    """Return the typed, checked configuration. Raises `ConfigError`, one line."""
    try:
        config = cast(Config, OmegaConf.to_object(_counting(composed)))
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    check(config)
    return config


def _counting(composed: DictConfig) -> DictConfig:
    """Return the configuration with `rounds` what the strategy counts: rounds, or pushes.

    Before anything that is made of `rounds` is worked out, as a schedule's length is.
    """
    pushes = OmegaConf.select(composed, "strategy.pushes")
    if not isinstance(pushes, int) or pushes < 1:  # none, or a mistake that `check` will name
        return composed
    return cast(DictConfig, OmegaConf.merge(composed, {"rounds": pushes}))


def run_config(composed: DictConfig, output: str = "") -> dict[str, str]:
    """Return Flower's `run_config` (flat scalars): the resolved config as one JSON string.

    `output` is the folder for result files ("": none are written).
    """
    plain = OmegaConf.to_container(_counting(composed), resolve=True)
    return {"config": json.dumps(plain, separators=(",", ":")), "output": output}


def load_config(values: Mapping[str, Any], nodes: int) -> Config:
    """Return the typed configuration that a Flower `run_config` carries.

    With an empty `config` (plain `flwr run .`) the groups in conf/ are composed with the
    command-line words in `overrides`, and the `nodes` there are take the place of `nodes=`.
    Cached: apps call this for every message.
    """
    config = str(values.get("config", ""))
    return _loaded(config) if config else _composed(str(values.get("overrides", "")), nodes)


@functools.lru_cache(maxsize=4)
def _loaded(config: str) -> Config:
    merged = OmegaConf.merge(OmegaConf.structured(Config), json.loads(config))
    return to_config(cast(DictConfig, merged))


@functools.lru_cache(maxsize=4)
def _composed(overrides: str, nodes: int) -> Config:
    return to_config(compose_config([*shlex.split(overrides), f"nodes={nodes}"]))


def network_config(name: str) -> NetworkConfig:
    """Return what one of conf/network/*.yaml says that builds on no other."""
    own = OmegaConf.load(HERE / "network" / f"{name}.yaml")
    return cast(NetworkConfig, OmegaConf.to_object(OmegaConf.merge(NetworkConfig, own)))


def compose_config(overrides: list[str]) -> DictConfig:
    """Compose conf/ with command-line `overrides`, outside of Hydra's own main."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(HERE), version_base="1.3"):
        return compose("config", overrides=overrides)
