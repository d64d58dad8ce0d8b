"""Checks that types alone cannot make: bounds, and keys that belong to a `_target_`'s signature."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from hydra.utils import get_object

from conf.schema import FOREVER, WAITING, Config, ConfigError

# What each rule's proof asks for: this many times as many nodes as malicious ones, and 3 more
# (Blanchard et al. 2017, proposition 4.2; El Mhamdi et al. 2018, section 4).
TOLERATED = {"Krum": 2, "MultiKrum": 2, "Bulyan": 4}
PRIMITIVES = (bool, int, float, str, NoneType)


def check(config: Config) -> None:
    """Raise `ConfigError` for the first value that is out of bounds or of the wrong type.

    The engine is for who starts a run to check: inside of one it does not matter any more. The
    partition is for who makes it: a node with images of its own need not import partitioners.
    """
    _check_bounds(config, "")
    for group in ("strategy", "optimizer", "schedule"):
        check_target(group, getattr(config, group))
    _check_sampling(config)
    _check_update(config)
    _check_cut(config)
    _check_records(config)
    _check_malicious(config)
    if config.dataset.holdout >= 1:
        raise ConfigError(f"dataset.holdout must be below 1, not {config.dataset.holdout}")
    _check_network(config)


def _check_network(config: Config) -> None:
    network = config.network
    if network.classes:
        total = sum(c.share for c in network.classes.values())
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"the shares of network.classes must add up to 1, not {total:g}")
    if network.waiting not in WAITING:
        raise ConfigError(
            f"network.waiting must be one of {', '.join(WAITING)}, not {network.waiting}"
        )
    if network.loss and config.timeout >= FOREVER:
        raise ConfigError(
            f"network.loss={network.loss:g} needs a timeout=, the virtual seconds after "
            "which nobody waits for a lost answer any more"
        )
    ours = str(config.strategy["_target_"]).startswith("strategy.")
    if (network.crash or network.join_seconds) and not ours:
        raise ConfigError(
            "network.crash and network.join_seconds need a strategy that stands them: "
            "strategy=asynchronous or sparse_averaging"
        )


def _check_sampling(config: Config) -> None:
    """Refuse numbers that Flower's strategies would take without a word, or wait on for ever."""
    for key, value in config.strategy.items():
        if key.startswith("num_") and not (key == "num_nodes_to_select") <= value <= config.nodes:
            low = int(key == "num_nodes_to_select")
            raise ConfigError(f"strategy.{key} must be from {low} to {config.nodes}, not {value}")
        if key.startswith("fraction_") and not 0 <= value <= 1:
            raise ConfigError(f"strategy.{key} must be between 0 and 1, not {value:g}")
        if key == "proximal_mu" and value < 0:
            raise ConfigError(f"strategy.{key} must be at least 0, not {value:g}")
        if key.startswith("min_") and key.endswith("_nodes") and not 0 <= value <= config.nodes:
            raise ConfigError(
                f"strategy.{key} must be between 0 and nodes={config.nodes}, not {value}"
            )
    if _drawn(config) < 1:
        raise ConfigError(
            f"not one of nodes={config.nodes} would train: give a larger strategy.fraction_train"
        )


def _check_update(config: Config) -> None:
    """Refuse what a node that sends the gradient of one mini-batch would not heed."""
    if config.strategy.get("update") != "gradient":
        return
    for key, alone in (("local_steps", None), ("local_epochs", 1)):
        if getattr(config, key) != alone:
            raise ConfigError(
                f"{key} goes with strategy.update=delta; with strategy.update=gradient a node "
                "sends the gradient of one mini-batch"
            )
    unheeded = config.optimizer.get("weight_decay") or config.optimizer.get("nesterov")
    if unheeded or not str(config.optimizer["_target_"]).endswith(".SGD"):
        instead = "give strategy/optimizer=" if "optimizer" in config.strategy else "drop it"
        raise ConfigError(
            "optimizer= is for steps at the nodes, and with strategy.update=gradient they take "
            f"none: {instead}, or give strategy.update=delta"
        )


def _check_cut(config: Config) -> None:
    """Refuse what a cut model's nodes would not heed, or wait on for ever."""
    if "segment_every" not in config.strategy:
        return
    if config.local_steps is not None or config.local_epochs != 1:
        raise ConfigError(
            "a cut model's nodes step with each mini-batch: drop local_steps= and local_epochs="
        )
    if config.network.crash and config.timeout >= FOREVER:
        raise ConfigError(
            f"network.crash={config.network.crash:g} needs a timeout= here, the virtual seconds "
            "after which another node takes a segment over"
        )


def _check_records(config: Config) -> None:
    """Refuse records between which an evaluation would fall out."""
    every = config.strategy.get("record_every", 1)
    if isinstance(every, int) and every > 0 and config.eval_every % every:
        raise ConfigError(
            f"eval_every={config.eval_every} must be a multiple of strategy.record_every={every}"
        )


def _drawn(config: Config) -> int:
    """Return how many nodes train in a round, as Flower's FedAvg counts them: none at 0."""
    share = float(config.strategy.get("fraction_train", 1))
    least = int(config.strategy.get("min_train_nodes", 0))
    return max(int(config.nodes * share), least) if share else 0


def _check_malicious(config: Config) -> None:
    """Refuse more malicious nodes than a strategy stands: its answer would mean nothing."""
    name = str(config.strategy["_target_"]).rpartition(".")[2]
    times, malicious = TOLERATED.get(name, 0), config.strategy.get("num_malicious_nodes", 0)
    drawn, needed = _drawn(config), times * malicious + 3
    if times and malicious and drawn < needed:
        raise ConfigError(
            f"strategy.num_malicious_nodes={malicious} needs {needed} nodes a round with {name}, "
            f"there are {drawn}"
        )


def _check_bounds(node: Any, prefix: str) -> None:
    for entry in fields(node):
        value, key = getattr(node, entry.name), prefix + entry.name
        if is_dataclass(value):
            _check_bounds(value, key + ".")
        elif isinstance(value, Mapping):
            for name, item in value.items():
                if is_dataclass(item):
                    _check_bounds(item, f"{key}.{name}.")
        elif value is not None and not isinstance(value, str):
            low, bound = entry.metadata.get("at_least"), entry.metadata.get("above")
            if low is not None and not low <= value < float("inf"):  # also refuses NaN
                raise ConfigError(f"{key} must be a number of at least {low:g}, not {value:g}")
            below = entry.metadata.get("below")
            if below is not None and value >= below:
                raise ConfigError(f"{key} must be below {below:g}, not {value:g}")
            if bound is not None and not bound < value < float("inf"):
                raise ConfigError(f"{key} must be a number above {bound:g}, not {value:g}")


def check_target(group: str, node: Any) -> None:
    """Check the keys of a group that has a `_target_` against that target's signature."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(f"{group} must name one of conf/{group}/*.yaml")
    try:
        target = get_object(str(node["_target_"]))
    except Exception as error:
        raise ConfigError(f"{group}._target_={node['_target_']} cannot be imported") from error
    parameters, takes_any = _parameters(target)
    for key, value in node.items():
        if key in ("_target_", "_partial_"):
            continue
        if key not in parameters and not takes_any:
            near = get_close_matches(str(key), parameters, n=1)
            hint = f"; did you mean {group}.{near[0]}?" if near else ""
            raise ConfigError(f"{group}.{key} is not an option of {node['_target_']}{hint}")
        if isinstance(value, Mapping) and "_target_" in value:
            check_target(f"{group}.{key}", value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{group}.{key} must be a finite number, not {value:g}")
        if key in parameters:
            _check_type(f"{group}.{key}", value, parameters[str(key)].annotation)


def _parameters(target: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return what a target takes by name, and whether it takes any other name (`**options`).

    A class that does may hand them on to the classes that it derives from: theirs are included.
    """
    found = dict[str, inspect.Parameter]()
    for each in inspect.getmro(target)[:-1] if inspect.isclass(target) else (target,):
        here = inspect.signature(each).parameters
        found = {**here, **found}
        if not _takes_any(here):
            break
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {name: p for name, p in found.items() if p.kind not in kinds}
    return named, _takes_any(inspect.signature(target).parameters)


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check_type(key: str, value: Any, annotation: Any) -> None:
    """Compare a plain value with the primitives in its parameter's annotation, if it has any."""
    annotation = _resolve(annotation)
    union = get_origin(annotation) in (Union, UnionType)
    allowed = [t for t in (get_args(annotation) if union else (annotation,)) if t in PRIMITIVES]
    if not allowed or not isinstance(value, PRIMITIVES):
        return
    if type(value) in allowed or (float in allowed and type(value) is int):
        return
    if value is None and any(t not in PRIMITIVES for t in get_args(annotation)):
        return
    kinds = " or ".join("null" if t is NoneType else t.__name__ for t in allowed)
    raise ConfigError(f"{key} must be {kinds}, not {value!r}")


def _resolve(annotation: Any) -> Any:
    """Turn a string annotation ('float | None') into types; leave what it cannot resolve."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(
            annotation, {"Union": Union}, {t.__name__: t for t in PRIMITIVES}
        )  # our own code
    except Exception:
        return None
