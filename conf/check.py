"""Checks values, and the options of classes that a configuration names; makes codecs and objects.

Nothing here imports torch, so that most errors show before its slow import. `edgewire.conf.rules`
checks combinations of options.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from edgewire.compression.codec import Codec
from edgewire.compression.make import make_codec
from edgewire.compression.registry import get, options_of
from edgewire.compression.validation import FOREVER
from edgewire.conf.classes import (
    GROUPS,
    HERE,
    callable_of,
    inner_target_of,
    named,
    nested,
    presets_of,
    target_of,
)
from edgewire.conf.option_group import OptionGroup, expect_within_bounds
from edgewire.conf.schema import OWN, Config, ConfigError

MORE = "--help says which there are"  # keys
TYPES: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
PRIMITIVES = (bool, int, float, str, NoneType)
REACH = 2.0  # of levels that are rounded at random; chosen on parts of four training sets
# Groups whose other options protect nothing without one: the name of this one, and a value for it.
PROTECTIONS = {"privacy": ("unit", "sample"), "secure": ("mode", "sum")}


def expect_keys(
    prefix: str, found: Iterable[str], known: list[str], needed: Iterable[str], more: str
) -> None:
    """Raise `ConfigError` for a found key that is not known, and for a needed one that is missing.

    `prefix`: goes before the keys in the error. `more`: its hint if no known key is similar.
    """
    given = [*found]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else more
            raise ConfigError(f"there is no key {prefix}{name}; {hint}")
    for name in needed:
        if name not in given:
            raise ConfigError(f"~{prefix}{name}: every run has that key; give it another value")


def check_values(config: Config) -> None:
    """Raise `ConfigError` for methods that are unknown, and for combinations of values.

    It does not import torch, which takes seconds; `check_targets` does.
    """
    codec_of(config), codec_of(config, "gradients"), downlink_of(config)
    if config.network.loss and config.timeout >= FOREVER:
        raise ConfigError(
            f"network.loss={config.network.loss:g} needs a timeout=, the virtual seconds after "
            "which the server no longer waits for a lost reply"
        )


def expect_on(
    config: Config,
    given: Collection[str],
    groups: Iterable[str] = PROTECTIONS,
    saved: Collection[str] = (),
) -> None:
    """Raise `ConfigError` for an option of privacy or secure sums that would protect nothing.

    `given`: the keys of the command's words. `groups`: those of `PROTECTIONS` to check. `saved`:
    the groups of a saved configuration, of which only words count.
    """
    for group in groups:
        values, (key, cure) = getattr(config, group), PROTECTIONS[group]
        if getattr(values, key) != "none":
            continue
        for each in fields(values):
            word, differs = f"{group}.{each.name}", getattr(values, each.name) != each.default
            if each.name != key and (word in given or (differs and group not in saved)):
                choice = f"{group}.{key}={cure}" if group in saved else f"{group}={cure}"
                raise ConfigError(f"{word}= protects nothing without {choice}, say: give it")


def check_targets(config: Config, *, submitted: bool = False) -> None:
    """Raise `ConfigError` for options that the group's `_target_` class does not have.

    `submitted`: whether another machine has given the configuration (`callable_of`). Two groups are
    not checked here. The launcher checks `engine`, which has no effect inside a run. `partition_of`
    checks `partition`: a check here would import the partitioners, which a node with its own images
    does not need.
    """
    for group in ("strategy", "adapter", "local", "objective", "optimizer", "schedule"):
        check_target(group, getattr(config, group))
    for group in OWN:
        if own := getattr(config, group).own:
            check_target(group, own, submitted=submitted)


def check_fields(node: Any, prefix: str = "") -> None:
    """Raise `ValueError` for a key or value in a dataclass, or in one inside of it, that is wrong.

    Hydra adds undeclared keys inside groups (`+key=`), which nothing would read. OmegaConf checks
    the types, but not a container that `${...}` names, nor lists in lists.
    """
    kinds = TYPES(type(node))
    expect_keys(prefix, vars(node), [*kinds], (), MORE)
    expect_within_bounds(prefix, node)
    for name, kind in kinds.items():
        value, key = getattr(node, name), prefix + name
        names = isinstance(value, list) and all(isinstance(each, str) for each in value)
        inner = value if isinstance(value, dict) else {}
        for place, group in {key: value, **{f"{key}.{k}": v for k, v in inner.items()}}.items():
            if is_dataclass(group):
                check_fields(group, f"{place}.")
        if is_dataclass(kind) and not is_dataclass(value):
            raise ValueError(f"{key} is a group of keys, not one value: {key}.KEY=VALUE")
        if list[str] in (kind, *get_args(kind)) and not (names or value is None):
            raise ValueError(f"{key} must be a list of names: {key}=[NAME,NAME]")


def codec_of(config: Config, group: str = "compression") -> Codec:
    """Return the codec of a group: the nodes', the server's, or that of activations' gradients.

    Raises `ConfigError` for unknown methods or options.
    """
    options = asdict(getattr(config, group))
    for name in ("changes", "from_seed"):  # of `downlink`
        options.pop(name, None)
    try:
        if group == "compression" and config.secure.mode == "sum":
            options |= _forgetting(options)
        return make_codec(**options)
    except ValueError as error:
        raise ConfigError(f"{group}: {error}") from error


def _forgetting(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the nodes' codec in mode `sum`, in which they keep no errors (`SecureMod`).

    So levels are rounded at random. Raises `ValueError` for another value of these options.
    """
    forced: dict[str, Any] = {"feedback": False}
    if "stochastic" in options_of(get("quantizer", options["quantizer"])):
        forced["stochastic"] = True
    for name, value in forced.items():
        if options[name] not in (None, value):
            raise ValueError(f"option {name}: with secure=sum nodes keep no errors")
    if "stochastic" in forced and options["reach"] is None:
        forced["reach"] = REACH
    return forced


@dataclass(frozen=True)
class Codecs:
    """The codecs of both directions between server and nodes, and the seed of a run.

    `uplink`: the nodes' codec. `downlink`: the codec of the server's updates; None: the server
    sends whole models. `seed`: the seed of the codecs' random numbers, and of the choice of nodes.
    `from_seed`: True if the nodes make the model before training from the run's seed.
    `compact_records`: True if the records beside the payloads are sent in compact form.
    """

    uplink: Codec | None = None
    downlink: Codec | None = None
    seed: int = 0
    from_seed: bool = False
    compact_records: bool = False

    @property
    def contextual(self) -> bool:
        """Whether the index sets of either direction are coded by context."""
        codecs = (self.uplink, self.downlink)
        return any(codec is not None and codec.coder.contextual for codec in codecs)


NO_CODECS = Codecs()


def codecs_of(config: Config) -> Codecs:
    """Return a run's codecs. Raises `ConfigError` like `codec_of` and `downlink_of`."""
    seeded, compact = config.downlink.from_seed, config.compact_records
    return Codecs(codec_of(config), downlink_of(config), config.seed, seeded, compact)


def downlink_of(config: Config) -> Codec | None:
    """Return the codec of the server's updates; None if the server sends the whole model.

    Raises `ConfigError` like `codec_of`, and for codec options with `downlink=full`.
    """
    if config.downlink.changes:
        return codec_of(config, "downlink")
    none = vars(type(config.downlink)())
    for name, default in none.items():
        if getattr(config.downlink, name) != default:
            raise ConfigError(
                "downlink=full sends the model whole: choose another downlink=, or give "
                f"downlink.{name}={json.dumps(default)}"
            )
    return None


@dataclass(frozen=True)
class Target:
    """A checked class and its checked arguments: plain values, and other `Target`s."""

    make: Callable[..., Any]
    options: dict[str, Any]

    def made(self, *args: Any, **options: Any) -> Any:
        """Return a new object of the class, made with the checked arguments and the caller's.

        Raises `ConfigError` for an argument that both the configuration and the caller give.
        """
        own = {
            key: value.made() if isinstance(value, Target) else copy.deepcopy(value)
            for key, value in self.options.items()
        }
        if twice := own.keys() & options.keys():
            key = min(twice)
            hint = f"give {key}= in its place" if hasattr(Config, key) else "drop it"
            raise ConfigError(f"the run itself sets {key}: {hint}")
        return self.make(*args, **own, **options)


def check_target(group: str, node: Any, *, submitted: bool = False) -> Target:
    """Check a group's `_target_`, and its keys against the target's signature; return a `Target`.

    This function does not create the object. `submitted`: as in `check_targets`. Raises
    `ConfigError` for a class of another kind, and for an unknown option.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(f"{group} must name one of conf/{group}/*.yaml")
    if not isinstance(node.get("_partial_", False), bool):
        raise ConfigError(f"{group}._partial_ must be true or false, not {node['_partial_']!r}")
    find = target_of if group in GROUPS else partial(callable_of, submitted=submitted)
    options = {key: value for key, value in node.items() if key != "_partial_"}
    target = find(group, str(node["_target_"]))
    if group in GROUPS and node["_target_"] not in named(HERE / group):
        options = _without_presets(group, options, target)
    return checked_target(group, options, target)


def _without_presets(group: str, options: Mapping[Any, Any], target: Any) -> dict[Any, Any]:
    """Drop options that one's own class lacks, if they have a value from the group's YAML files.

    `local._target_=mine.Twice` changes the class of `local=plain` and leaves the options of that
    file, which nobody gave to `Twice`.
    """
    parameters, takes_any, _ = parameters_of(target)
    presets = () if takes_any else presets_of(HERE / group)
    return {
        key: value
        for key, value in options.items()
        if key in parameters or (key, repr(value)) not in presets
    }


def build(group: str, node: Any) -> Any:
    """Return the object that a group's `_target_` makes of its keys (a callable if `_partial_`).

    Raises `ConfigError` like `check_target`. If the target refuses a value, the error has the
    target's own message.
    """
    target = check_target(group, node)
    later = bool(node.get("_partial_"))
    # Without `_partial_` the configuration gives all arguments, so it causes any error. With
    # `_partial_` the caller adds arguments, and an error of another type may be a bug.
    foreseen = (ValueError, TypeError, ArithmeticError) if later else Exception

    def call(*args: Any, **options: Any) -> Any:
        try:
            return target.made(*args, **options)
        except foreseen as error:
            if isinstance(error, ValueError | TypeError) and str(error):
                raise ConfigError(f"{group}: {' '.join(str(error).split())}") from error
            raise ConfigError(group, error) from error

    return call if later else call()


def checked_target(group: str, node: Mapping[Any, Any], target: Callable[..., Any]) -> Target:
    """Check the keys beside a `_target_` against the target's signature."""
    parameters, takes_any, groups = parameters_of(target)
    options = {str(key): value for key, value in node.items() if key != "_target_"}
    for key, value in options.items():
        whole = next((p for p in groups if p.name == key), None)
        if key.startswith("_") or whole or (key not in parameters and not takes_any):
            near = [*_fields_of(whole)] if whole else get_close_matches(key, parameters, n=1)
            away = f"; if a preset sets it, ~{group}.{key} removes it"
            hint = f"; did you mean {group}.{near[0]}?" if near else away
            raise ConfigError(f"{group}.{key} is not an option of {node['_target_']}{hint}")
        annotation = parameters[key].annotation if key in parameters else None
        if isinstance(value, Mapping) and "_target_" in value:
            name = f"{group}.{key}"
            inner = inner_target_of(name, str(value["_target_"]), annotation)
            options[key] = checked_target(name, value, inner)
            continue
        _expect_values(f"{group}.{key}", value)
        if key in parameters:
            _check_type(f"{group}.{key}", value, annotation)
    for outer in groups:
        if own := {key: options.pop(key) for key in _fields_of(outer) if key in options}:
            given = isinstance(outer.default, outer.annotation)
            make = partial(replace, outer.default) if given else outer.annotation
            options[outer.name] = Target(make, own)
    return Target(target, options)


def _expect_values(key: str, value: Any) -> None:
    """Refuse numbers that are not finite, and a `_target_` inside of a value."""
    for name, inner in nested(key, value):
        if isinstance(inner, float) and not math.isfinite(inner):
            raise ConfigError(f"{name} must be a finite number, not {inner:g}")
        if isinstance(inner, Mapping) and "_target_" in inner:
            raise ConfigError(f"{name}: an object is made for an option, not within its value")


def parameters_of(
    target: Any,
) -> tuple[dict[str, inspect.Parameter], bool, tuple[inspect.Parameter, ...]]:
    """Return a class's or function's named parameters, and whether it also has `**options`.

    A class with `**options` may pass them to its base classes. So the parameters of the base
    classes are included. The fields of an `OptionGroup` replace the parameter that takes the group.
    The third return value holds these replaced parameters.
    """
    found = dict[str, inspect.Parameter]()
    for each in inspect.getmro(target)[:-1] if inspect.isclass(target) else (target,):
        here = _signature(each).parameters
        found = {**here, **found}
        if not _takes_any(here):
            break
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    classes = [p for p in found.values() if isinstance(p.annotation, type)]
    groups = tuple(p for p in classes if issubclass(p.annotation, OptionGroup))
    named = {name: p for name, p in found.items() if p.kind not in kinds and p not in groups}
    for group in groups:
        named |= _fields_of(group)
    return named, _takes_any(_signature(target).parameters), groups


def _fields_of(group: inspect.Parameter) -> Mapping[str, inspect.Parameter]:
    """Return the fields of the `OptionGroup` that a parameter takes, as parameters by name."""
    return _signature(group.annotation).parameters


def _signature(target: Any) -> inspect.Signature:
    """Return a target's signature, with annotations as types.

    All annotations stay text if one of them cannot be evaluated, such as a name that is imported
    under `TYPE_CHECKING`. A target without a known signature counts as one that takes any
    arguments.
    """
    for resolved in (True, False):
        with suppress(Exception):  # evaluating an annotation can raise anything
            return inspect.signature(target, eval_str=resolved)
    return inspect.signature(lambda *args, **options: None)


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check_type(key: str, value: Any, annotation: Any) -> None:
    """Check a plain value against the primitive types in its parameter's annotation, if any."""
    union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    allowed = [t for t in kinds if t in PRIMITIVES]
    others = [t for t in kinds if t not in PRIMITIVES]
    if not allowed or not all(map(_is_class, others)):
        return
    if not isinstance(value, PRIMITIVES) and any(map(_is_collection, others)):
        return
    if type(value) in allowed or (float in allowed and type(value) is int):
        return
    if value is None and others:
        return
    found = ["null" if t is NoneType else t.__name__ for t in allowed]
    names = " or ".join([*found, *(["a list"] if any(map(_is_collection, others)) else [])])
    raise ConfigError(f"{key} must be {names}, not {value!r}")


def _is_collection(kind: Any) -> bool:
    """Return whether a list or a mapping may be a value of this type."""
    kind = get_origin(kind) or kind
    return kind.__module__ in ("builtins", "collections.abc") and issubclass(kind, Collection)


def _is_class(kind: Any) -> bool:
    """Return whether an annotation is a class or a generic class, not a form such as `Literal`."""
    return kind is not Any and isinstance(get_origin(kind) or kind, type)
