"""Checks values that Python code passes to compression methods, with errors of one line."""

import math
from dataclasses import field
from typing import Any

if __name__.partition(".")[0] == "compression":  # only the path knows this folder
    raise ImportError("compression is called edgewire.compression now", name=__name__)
FOREVER = 1e9  # seconds; a timeout of FOREVER or more means no timeout
BOUNDS = {"at_least", "at_most", "below", "above", "one_of"}  # of an option, see `bounded`


def bounded(default: Any, **bounds: Any) -> Any:
    """Declare a dataclass's field with a default and bounds, which `expect_bounds` checks.

    `at_least`, `at_most`: the smallest and the largest allowed value. `below`, `above`: values must
    stay below, or exceed it. `one_of`: the allowed values.
    """
    return field(default=default, metadata=bounds)


def expect_bounds(method: str, option: str, value: Any, **bounds: Any) -> None:
    """Raise ValueError if an option's value is NaN, infinite or outside its bounds (`bounded`)."""
    low = bounds.get("above", bounds.get("at_least", 0))
    high = bounds.get("below", bounds.get("at_most", math.inf))
    if "one_of" in bounds:
        fits, said = value in bounds["one_of"], " or ".join(map(str, bounds["one_of"]))
    else:
        ends = math.inf, bounds.get("above"), bounds.get("below")
        fits, said = low <= value <= high and value not in ends, f"from {low:g} to {high:g}"
        if high == math.inf:
            said = f"at least {low:g}"
        elif "above" in bounds:
            said = f"above {low:g} and up to {high:g}"
        elif "below" in bounds:
            said = f"from {low:g} to below {high:g}"
    if not fits:
        given = repr(value) if "one_of" in bounds else f"{value:g}"
        raise ValueError(f"option {option} of {method} must be {said}, not {given}")


def expect_kinds(**options: tuple[object, type]) -> None:
    """Raise `TypeError` for an option that is not of its class: (value, class) by name."""
    for name, (value, kind) in options.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
