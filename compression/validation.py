"""Checks values that Python code passes to compression methods, with errors of one line."""

import math
from collections.abc import Mapping
from dataclasses import field
from operator import ge, gt, le, lt
from typing import Any

if __name__.partition(".")[0] == "compression":  # only the path knows this folder
    raise ImportError("compression is called edgewire.compression now", name=__name__)
FOREVER = 1e9  # seconds; a timeout of FOREVER or more means no timeout
LARGEST = (1 << 63) - 1  # the largest integer that libraries accept
SIDES = (
    ("at_least", "of at least", le),
    ("above", "above", lt),
    ("at_most", "at most", ge),
    ("below", "below", gt),
)


def bounded(default: Any, **bounds: Any) -> Any:
    """Declare a dataclass's field with a default and bounds, which `expect_bounds` checks.

    `at_least`, `at_most`: the smallest and the largest allowed value. `below`, `above`: values must
    stay below, or exceed it. `one_of`: the allowed values.
    """
    return field(default=default, metadata=bounds)


def expect_bounds(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    """Raise ValueError for a value outside the bounds of `bounded`; `name`: of the option.

    NaN and infinity are outside of any bound, and an integer of more than 63 bits always is.
    """
    if "one_of" in bounds and value not in bounds["one_of"]:
        allowed = ", ".join(map(str, bounds["one_of"]))
        raise ValueError(f"{name} must be one of {allowed}, not {value!r}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    sides = [(words, bounds[side], fits) for side, words, fits in SIDES if side in bounds]
    if sides and not (number and value < math.inf and all(f(b, value) for _, b, f in sides)):
        said = " and ".join(f"{words} {bound}" for words, bound, _ in sides)
        raise ValueError(f"{name} must be a number {said}, not {value!r}")
    if isinstance(value, int) and value > LARGEST:
        raise ValueError(f"{name} must be below {LARGEST + 1}, not {value}")


def expect_kinds(**options: tuple[object, type]) -> None:
    """Raise `TypeError` for an option that is not of its class: (value, class) by name."""
    for name, (value, kind) in options.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
