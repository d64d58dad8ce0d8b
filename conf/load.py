"""Converts Hydra's config to JSON in Flower's `run_config`, and this JSON to typed objects."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from edgewire.conf.check import (
    MORE,
    check_fields,
    check_targets,
    check_values,
    expect_keys,
    expect_on,
)
from edgewire.conf.classes import GROUPS
from edgewire.conf.classes import HERE as HERE
from edgewire.conf.own_packages import fingerprint, import_packages, qualified
from edgewire.conf.schema import OWN, Config, ConfigError, declared, group_types
from edgewire.conf.trust import (
    NodeGrants,
    confine,
    expect_plain,
    is_local,
    mark_as_local,
    submitted_overrides,
)
from edgewire.task.model_file import sha256_of


def to_config(composed: DictConfig, machine: NodeGrants | None = None) -> Config:
    """Return the typed, checked configuration. Raises `ConfigError` with a one-line message.

    `machine`: what this machine grants to a configuration that was submitted to it; None: the
    configuration is this machine's own. A submitted configuration must not need OmegaConf's
    resolvers. No text that a reference has resolved to is resolved again.
    """
    config = typed(composed, machine)
    check_targets(config, submitted=machine is not None)
    return config


def typed(composed: DictConfig, machine: NodeGrants | None = None) -> Config:
    """Return the configuration like `to_config`, without imports that take seconds.

    It does not check the options of the classes that groups name as `_target_`. It imports
    `packages`, whose imports may take seconds.
    """
    names = [entry.name for entry in fields(Config)]
    expect_keys("", map(str, composed), names, names, MORE)
    try:
        config = cast(Config, OmegaConf.to_object(_counting(composed)))
        check_fields(config)
        packages = import_packages(config.packages, machine)
        for key in (*GROUPS, *OWN):
            setattr(config, key, qualified(key, getattr(config, key), packages))
        for key, kind in group_types().items():
            setattr(config, key, _own(key, getattr(config, key), kind))
    except (OmegaConfBaseException, ValueError) as error:  # a dataclass refuses its own values
        raise ConfigError(str(error).splitlines()[0]) from error
    if machine is not None:
        confine(config, machine)
    check_values(config)
    return config


def _own(key: str, node: Any, kind: type[Any]) -> Any:
    """Return a group of `group_types` as its dataclass, with its keys typed.

    If the dataclass has a field `own`, the group may name a `_target_`; `own` then holds the
    `_target_` and all keys that are not declared. Raises `ConfigError` for a key that is not
    declared if there is no `_target_`, and for a declared key that is missing.
    """
    if not isinstance(node, dict):
        if key in OWN:
            raise ConfigError(f"{key} must name one of conf/{key}/*.yaml")
        raise ConfigError(f"{key} is a group of keys, not one value: {key}.KEY=VALUE")
    names = [entry.name for entry in fields(kind) if entry.name != "own"]
    others = {str(name): value for name, value in node.items() if name not in names}
    target = others.pop("_target_", None) if key in OWN else None
    given = {name: node[name] for name in names if name in node}
    needed = [name for name in names if name in _with_default(key)]
    more = f"{key}._target_= may have more keys"
    more = more if key in OWN else "packages= may register a method that has it"
    expect_keys(f"{key}.", [*given, *({} if target else others)], names, needed, more)
    if target is not None and not isinstance(target, str):
        raise ConfigError(f"{key}._target_ must be the dotted name of a function or class")
    if key == "dataset" and given["name"]:
        raise ConfigError("dataset.name= chooses nothing: give dataset=NAME, or dataset._target_=")
    if target:
        given["name"] = target.rpartition(".")[2]
    if key in OWN and not given["name"]:
        raise ConfigError(f"{key} must name one of conf/{key}/*.yaml")
    typed = OmegaConf.structured(kind)
    for name, value in given.items():
        try:
            typed[name] = literal(value)
        except OmegaConfBaseException as error:
            said = "must be a list: [NAME,NAME]" if "ListConfig" in str(error) else ""
            said = said or str(error).splitlines()[0]
            raise ConfigError(f"{key}.{name}: {said}") from error
    found: Any = OmegaConf.to_object(typed)
    if key in OWN:
        found.own = {"_target_": target, **others} if target else {}
    check_fields(found, f"{key}.")
    return found


@functools.cache
def _with_default(key: str) -> frozenset[str]:
    """Return the keys of a group that every configuration has."""
    group = declared()[key]
    return frozenset(name for name in group if name in group)


def literal(node: Any, kept: Callable[[str], object] = lambda _: False) -> Any:
    """Return plain values with escapes, so that OmegaConf takes each text as it is.

    `kept`: whether a text stays a reference for OmegaConf.
    """
    if isinstance(node, list):
        return [literal(each, kept) for each in node]
    if isinstance(node, dict):
        return {key: literal(each, kept) for key, each in node.items()}
    if not isinstance(node, str) or kept(node):
        return node
    # OmegaConf reads \${ as ${, and \\ before it as one backslash.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", node)


def _counting(composed: DictConfig) -> DictConfig:
    """Return the configuration with `rounds` set to `strategy.pushes`, if the strategy has it.

    Call this before values that refer to `rounds`, such as `schedule.T_max`, are resolved.
    """
    pushes = OmegaConf.select(composed, "strategy.pushes")
    if not isinstance(pushes, int) or pushes < 1:  # absent, or the strategy refuses it
        return composed
    return cast(DictConfig, OmegaConf.merge(composed, {"rounds": pushes}))


def run_config(composed: DictConfig, output: str = "") -> dict[str, str]:
    """Return Flower's `run_config` (flat scalars): the resolved config as one JSON string.

    `output`: the folder for result files ("": write none). The names in `packages` get the
    fingerprints of the packages. The values are marked as this machine's own. `load_config` trusts
    marked values, in this process and in processes that it starts.
    """
    plain = cast(dict[str, Any], OmegaConf.to_container(_counting(composed), resolve=True))
    for key in ("logger", "stop_on_failure"):  # the command's, which no other machine needs to know
        plain.pop(key, None)
    if (file := plain["model"].get("file")) and not plain["model"].get("sha256"):
        plain["model"]["sha256"] = sha256_of(file)
    names = [word.partition("@")[0] for word in plain["packages"]]
    plain["packages"] = [f"{name}@{fingerprint(name)}" for name in names]
    values = {"config": json.dumps(plain, separators=(",", ":")), "output": output}
    mark_as_local(values)
    return values


def load_config(
    values: Mapping[str, Any], nodes: int, node_config: Mapping[str, Any] | None = None
) -> Config:
    """Return the typed configuration that a Flower `run_config` carries.

    If `config` is empty (plain `flwr run .`), this composes the groups in conf/ with the overrides
    in `overrides`, and sets `nodes=` to `nodes`, the number of online nodes. `config` holds texts
    as they are, because `run_config` has resolved all references. `node_config`: the configuration
    of the node itself, which may grant more (`edgewire.conf.trust`). Results are cached, because
    apps call this for every message. Raises `ConfigError` with a one-line message for any invalid
    values.
    """
    config, overrides = str(values.get("config", "")), str(values.get("overrides", ""))
    key = "config" if config else "overrides"
    machine = None if is_local(values) else NodeGrants.of(node_config or {})
    try:
        if config:
            return _loaded(config, machine)
        return _composed(overrides, nodes, machine or NodeGrants())
    except ConfigError as error:
        if config and machine is None:
            raise
        raise error.for_others() from error.__cause__
    except (HydraException, OmegaConfBaseException, json.JSONDecodeError) as error:
        raise ConfigError(f"{key}: {str(error).partition(chr(10))[0]}") from error
    except Exception as error:  # parsers raise other errors too for hostile input
        raise ConfigError(f"{key} cannot be read: {type(error).__name__}") from error


@functools.lru_cache(maxsize=4)
def _loaded(config: str, machine: NodeGrants | None) -> Config:
    plain = json.loads(config)
    if machine is not None:
        expect_plain(plain)
    merged = OmegaConf.merge(declared(), literal(plain))
    return to_config(cast(DictConfig, merged), machine)


@functools.lru_cache(maxsize=4)
def _composed(overrides: str, nodes: int, machine: NodeGrants) -> Config:
    checked = submitted_overrides(shlex.split(overrides))
    config = to_config(compose_config([*checked, f"nodes={nodes}"]), machine)
    expect_on(config, [word.lstrip("+").partition("=")[0] for word in checked])
    return config


def compose_config(
    overrides: list[str], *, hydra: bool = False, folder: Path = HERE, name: str = "config"
) -> DictConfig:
    """Compose conf/ with command-line `overrides`, outside of Hydra's own main.

    `hydra`: whether the result also has Hydra's own settings. `folder`, `name`: of another
    configuration than conf/config.yaml.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base="1.3"):
        found = compose(name, overrides=overrides, return_hydra_config=True)
    name_algorithm(found, found.hydra.runtime.choices)
    if not hydra:
        with open_dict(found):
            del found["hydra"]
    return found


def name_algorithm(composed: DictConfig, choices: Mapping[str, str]) -> None:
    """Set `algorithm` to the chosen preset; a saved configuration has no choice and keeps its name.

    `choices`: Hydra's, by group.
    """
    if (name := choices.get("algorithm")) and "algorithm" in composed:
        composed.algorithm = name
