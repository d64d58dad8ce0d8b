"""Registers the sparsifiers, quantizers and coders by name and by id, and lists their options."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import TypeVar, get_type_hints

from .base import PRIVATE, Coder, Method, Params, PayloadError, Quantizer, Sparsifier

STAGES: dict[str, type[Method]] = {
    "sparsifier": Sparsifier,
    "quantizer": Quantizer,
    "coder": Coder,
}
_registered: dict[str, dict[str, type[Method]]] = {stage: {} for stage in STAGES}

M = TypeVar("M", bound=type[Method])


def register(stage: str) -> Callable[[M], M]:
    """Return a class decorator that registers a sparsifier, a quantizer or a coder.

    ``stage``: which of the three; ValueError for another word. The decorator raises TypeError for
    a class that is not a dataclass with defaults, that lacks a name or an id, or that does not
    derive from the stage's base class. It raises
    ValueError for a name or id that another method has, and for an option that has another type in
    another method. The ids of this package's methods are 0 to 191. Those of other packages are 192
    to 255; sender and receiver must have the same packages. ValueError is raised for other ids.

    A class with the module and the name of a registered one takes its place: its module is imported
    again.
    """

    _expect_stage(stage)

    def add(cls: M) -> M:
        if not (is_dataclass(cls) and issubclass(cls, STAGES[stage])):
            raise TypeError(f"{cls.__name__} is no dataclass derived from {STAGES[stage].__name__}")
        for key, kind, example in (("name", str, '"mine"'), ("id", int, PRIVATE)):
            if type(getattr(cls, key, None)) is not kind:
                found = repr(getattr(cls, key)) if hasattr(cls, key) else "missing"
                raise TypeError(
                    f"{stage} {cls.__name__}: its {key} is {found}; give "
                    f"{key}: ClassVar[{kind.__name__}] = {example}"
                )
        cls()  # raises TypeError if an option has no default
        ours = cls.__module__.startswith(f"{__package__}.")
        if not ours:
            _discover(stage)  # a method of ours never comes after one with its name
        for other in list(_registered[stage].values()):
            if _place_of(cls) == _place_of(other):
                del _registered[stage][other.name]
            elif cls.name == other.name or cls.id == other.id:
                raise ValueError(
                    f"{stage} {cls.name} (id {cls.id}): name or id is taken by {other.name} "
                    f"(id {other.id})"
                )
        if not (0 <= cls.id < PRIVATE if ours else PRIVATE <= cls.id <= 255):
            raise ValueError(
                f"{stage} {cls.name}: its id is {cls.id}; the ids 0 to {PRIVATE - 1} are those of "
                f"{__package__}, and {PRIVATE} to 255 those of other packages"
            )
        theirs = {option: kind for option, kind, _ in _owned()}
        for option, kind in options_of(cls).items():
            if theirs.get(option, kind) != kind:
                raise ValueError(f"option {option} of {cls.name} has another type elsewhere")
        _registered[stage][cls.name] = cls
        by_id.cache_clear()
        return cls

    return add


def _place_of(cls: type[Method]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def names(stage: str) -> list[str]:
    """Return the names of all sparsifiers, quantizers or coders, sorted."""
    return sorted(_stage(stage))


def get(stage: str, name: str) -> type[Method]:
    """Return the class of a method by its name; raises ValueError for an unknown name.

    The error lists all names. ``stage``: sparsifier, quantizer or coder.
    """
    methods = _stage(stage)
    if name not in methods:
        raise ValueError(f"no {stage} is called {name!r}; there are {', '.join(sorted(methods))}")
    return methods[name]


@cache
def by_id(stage: str, number: int) -> type[Method]:
    """Return the class of a method by its id in payloads; raises PayloadError for an unknown id."""
    for cls in _stage(stage).values():
        if cls.id == number:
            return cls
    raise PayloadError(f"payload needs {stage} {number}, which this version does not have")


@lru_cache(maxsize=64)
def quantizer_of(kind: type[Quantizer], params: Params) -> Quantizer:
    """Return the quantizer with these untrusted ``params()``; raises PayloadError without one."""
    try:
        found = kind.of_params(params)
        if found.params() == params:
            return found
    except (TypeError, ValueError, IndexError):
        pass
    raise PayloadError(f"payload holds the parameters {params}: {kind.name} has no such")


def options_of(cls: type[Method]) -> dict[str, type]:
    """Return the type of each option of a method, by the option's name."""
    if not is_dataclass(cls):
        return {}
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache  # every configuration asks for the options of all methods
def _hints(cls: type[Method]) -> dict[str, type]:
    return get_type_hints(cls)


def option_fields() -> list[tuple[str, type, list[str]]]:
    """Return the options of all methods: name, type, and the names of the methods that have it."""
    for stage in STAGES:
        _discover(stage)
    return _owned()


def _owned() -> list[tuple[str, type, list[str]]]:
    found: dict[str, tuple[type, list[str]]] = {}
    for cls in (cls for methods in _registered.values() for cls in methods.values()):
        for option, kind in options_of(cls).items():
            found.setdefault(option, (kind, []))[1].append(cls.name)
    return [(option, kind, owners) for option, (kind, owners) in sorted(found.items())]


def _stage(stage: str) -> dict[str, type[Method]]:
    _expect_stage(stage)
    _discover(stage)
    return _registered[stage]


def _expect_stage(stage: str) -> None:
    if stage not in STAGES:
        raise ValueError(f"no stage is called {stage!r}; there are {', '.join(STAGES)}")


@cache
def _discover(stage: str) -> None:
    """Import every module of a stage's folder; each module registers its method."""
    package = importlib.import_module(f".{stage}s", __package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
