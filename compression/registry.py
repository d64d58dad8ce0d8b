"""The methods of each stage by name and by id, and a codec from a configuration."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from .stages import Coder, Method, PayloadError, Quantizer, Sparsifier

if TYPE_CHECKING:
    from .codec import Codec

STAGES: dict[str, type[Method]] = {
    "sparsifier": Sparsifier,
    "quantizer": Quantizer,
    "coder": Coder,
}
_registered: dict[str, dict[str, type[Method]]] = {stage: {} for stage in STAGES}

M = TypeVar("M", bound=type[Method])


def register(stage: str) -> Callable[[M], M]:
    """Class decorator that adds a method to a stage.

    Raises TypeError for a class that is no frozen dataclass with defaults or not of the stage,
    ValueError for a name or id that is taken or an option whose type differs in another method.
    """

    def add(cls: M) -> M:
        if not (is_dataclass(cls) and issubclass(cls, STAGES[stage])):
            raise TypeError(f"{cls.__name__} is no dataclass derived from {STAGES[stage].__name__}")
        cls()  # every option needs a default
        if not 0 <= cls.id <= 255:
            raise ValueError(f"{stage} {cls.name}: id {cls.id} does not fit a byte")
        for other in _registered[stage].values():
            if cls.name == other.name or cls.id == other.id:
                raise ValueError(
                    f"{stage} {cls.name} (id {cls.id}): name or id is taken by {other.name} "
                    f"(id {other.id})"
                )
        theirs = {option: kind for option, kind, _ in _options_of(_all_registered())}
        for option, kind in _options(cls).items():
            if theirs.get(option, kind) != kind:
                raise ValueError(f"option {option} of {cls.name} has another type elsewhere")
        _registered[stage][cls.name] = cls
        return cls

    return add


def names(stage: str) -> list[str]:
    """Names of a stage's methods, sorted."""
    return sorted(_stage(stage))


def get(stage: str, name: str) -> type[Method]:
    """Return the class of a method; ValueError listing the names if there is none."""
    methods = _stage(stage)
    if name not in methods:
        raise ValueError(f"no {stage} is called {name!r}; there are {', '.join(sorted(methods))}")
    return methods[name]


def by_id(stage: str, number: int) -> type[Method]:
    """Return the class with this id; PayloadError if there is none."""
    for cls in _stage(stage).values():
        if cls.id == number:
            return cls
    raise PayloadError(f"payload needs {stage} {number}, which this version does not have")


def option_fields() -> list[tuple[str, type, list[str]]]:
    """Every option of every method: its name, its type, the names of the methods that have it."""
    for stage in STAGES:
        _discover(stage)
    return _options_of(_all_registered())


def make_codec(
    sparsifier: str = "dense",
    quantizer: str = "float32",
    coder: str = "entropy",
    *,
    feedback: bool | None = None,
    exact: Sequence[str] | None = None,
    **options: Any,
) -> "Codec":
    """Build a codec from names and options; an option that is None counts as not given.

    ``feedback``: error feedback (`Codec`); if not given, on for quantizers that need it.
    ``exact``: patterns of names of tensors that travel as float32, exactly ("head.*").

    Raises ValueError, one line, for an unknown method, an option that none of the three has, or
    a value that is of the wrong type or out of range.
    """
    from .codec import Codec  # payload looks methods up here

    chosen = {"sparsifier": sparsifier, "quantizer": quantizer, "coder": coder}
    classes = {stage: get(stage, name) for stage, name in chosen.items()}
    given = {option: value for option, value in options.items() if value is not None}
    known = {option for cls in classes.values() for option in _options(cls)}
    for option in given:
        if option not in known:
            have = ", ".join(sorted(known)) or "none"
            raise ValueError(
                f"option {option} does not go with sparsifier {sparsifier}, quantizer {quantizer} "
                f"and coder {coder}; their options: {have}"
            )
    made = [_make(cls, given) for cls in classes.values()]
    writing = cast(Quantizer, made[1])
    feedback = writing.feedback if feedback is None else feedback
    names = _patterns(exact)
    return Codec(cast(Sparsifier, made[0]), writing, cast(Coder, made[2]), feedback, names)


def _patterns(exact: Sequence[str] | None) -> tuple[str, ...]:
    given = () if exact is None else exact
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise ValueError(f"option exact must be a list of patterns of names, not {exact!r}")
    return tuple(given)


def _make(cls: type[Method], given: dict[str, Any]) -> Method:
    mine: dict[str, Any] = {}
    for option, kind in _options(cls).items():
        if option in given:
            mine[option] = _checked(cls.name, option, given[option], kind)
    return cls(**mine)


def _checked(name: str, option: str, value: Any, kind: type) -> Any:
    accepted = {float: (int, float), int: (int,)}.get(kind, (kind,))
    if isinstance(value, accepted) and not (isinstance(value, bool) and kind is not bool):
        return kind(value)
    if type(value) is not kind:
        raise ValueError(f"option {option} of {name} must be {kind.__name__}, not {value!r}")
    return value


def _options(cls: type[Method]) -> dict[str, type]:
    if not is_dataclass(cls):
        return {}
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _options_of(methods: list[type[Method]]) -> list[tuple[str, type, list[str]]]:
    found: dict[str, tuple[type, list[str]]] = {}
    for cls in methods:
        for option, kind in _options(cls).items():
            found.setdefault(option, (kind, []))[1].append(cls.name)
    return [(option, kind, owners) for option, (kind, owners) in sorted(found.items())]


def _all_registered() -> list[type[Method]]:
    return [cls for methods in _registered.values() for cls in methods.values()]


def _stage(stage: str) -> dict[str, type[Method]]:
    if stage not in STAGES:
        raise ValueError(f"no stage is called {stage!r}; there are {', '.join(STAGES)}")
    _discover(stage)
    return _registered[stage]


@cache
def _discover(stage: str) -> None:
    """Import every module of the stage's sub-package, which registers its methods."""
    package = importlib.import_module(f".{stage}s", __package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
