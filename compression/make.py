"""Builds a codec from the names of its methods and their options."""

from collections.abc import Sequence
from typing import Any, cast

from .base import Coder, Method, Quantizer, Sparsifier
from .codec import Codec
from .registry import STAGES, get, names, options_of


def make_codec(
    sparsifier: str = "dense",
    quantizer: str = "float32",
    coder: str = "entropy",
    *,
    feedback: bool | None = None,
    exact: Sequence[str] | None = None,
    residual_decay: float | None = None,
    exact_steps: int | None = None,
    **options: Any,
) -> Codec:
    """Build a codec from names and options; an option with the value None is ignored.

    ``feedback``: error feedback (`Codec`); None turns it on for the methods that need it.
    ``exact``: patterns of names ("head.*"); tensors with such a name are sent exactly, as float32.
    ``residual_decay``: the factor, from 0 to 1, by which a node multiplies what it has not sent
    before it adds the next update; None is 1. ``exact_steps``: the values of the first so many
    updates are sent as float32; None is 0.

    Raises ValueError with a one-line message for an unknown method, for an option that none of the
    three methods has, and for a value of the wrong type or outside its range.
    """
    chosen = {"sparsifier": sparsifier, "quantizer": quantizer, "coder": coder}
    classes = {stage: get(stage, name) for stage, name in chosen.items()}
    given = {option: value for option, value in options.items() if value is not None}
    known = {option for cls in classes.values() for option in options_of(cls)}
    for option in given:
        if option not in known:
            have = ", ".join(sorted(known)) or "none"
            raise ValueError(
                f"option {option} does not go with sparsifier {sparsifier}, quantizer {quantizer} "
                f"and coder {coder}; their options: {have}"
            )
    made = [_make(cls, given) for cls in classes.values()]
    writing = cast(Quantizer, made[1])
    if feedback is None:  # what an incremental sparsifier's quantizer loses would be lost for ever
        sums = cast(Sparsifier, made[0]).incremental
        feedback = writing.feedback or (sums and not writing.exact)
    stages = cast(Sparsifier, made[0]), writing, cast(Coder, made[2])
    decay = 1.0 if residual_decay is None else residual_decay
    steps = 0 if exact_steps is None else exact_steps
    return Codec(
        *stages,
        feedback,
        _patterns(exact),
        _checked("compression", "residual_decay", decay, float),
        _checked("compression", "exact_steps", steps, int),
    )


def chosen(method: Codec | str, **options: Any) -> Codec:
    """Return the given codec, or make a codec from the name of a sparsifier, quantizer or coder.

    `options`: the options of `make_codec`. Raises `TypeError` if `method` is neither a codec nor a
    string, or if `method` is a codec and there are options. Raises `ValueError` for an unknown
    name, and for an option that does not fit the method.
    """
    if isinstance(method, Codec):
        if options:
            raise TypeError(f"{', '.join(options)}: give options to make_codec, or a method's name")
        return method
    if not isinstance(method, str):
        raise TypeError(f'a codec or the name of a method is needed, "int8" say, not {method!r}')
    stage = next((stage for stage in STAGES if method in names(stage)), None)
    if stage is None:
        known = ", ".join(name for each in STAGES for name in names(each))
        raise ValueError(f"no method is called {method!r}; there are {known}")
    if stage in options:
        raise TypeError(f"{method!r} is a {stage}: {stage}={options[stage]!r} is another")
    return make_codec(**{stage: method, **options})


def _patterns(exact: Sequence[str] | None) -> tuple[str, ...]:
    given = () if exact is None else exact
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise ValueError(f"option exact must be a list of patterns of names, not {exact!r}")
    return tuple(given)


def _make(cls: type[Method], given: dict[str, Any]) -> Method:
    kinds = {option: kind for option, kind in options_of(cls).items() if option in given}
    return cls(**{o: _checked(cls.name, o, given[o], kind) for o, kind in kinds.items()})


def _checked(name: str, option: str, value: Any, kind: type) -> Any:
    accepted = {float: (int, float), int: (int,)}.get(kind, (kind,))
    if isinstance(value, accepted) and not (isinstance(value, bool) and kind is not bool):
        return kind(value)
    if type(value) is not kind:
        raise ValueError(f"option {option} of {name} must be {kind.__name__}, not {value!r}")
    return value
