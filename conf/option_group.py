"""Declares options: the bounds of a dataclass's fields, and groups of options."""

from __future__ import annotations

import math
from dataclasses import fields
from operator import ge, le, lt
from typing import Any

from edgewire.compression.validation import bounded as bounded

LARGEST = (1 << 63) - 1  # the largest integer that libraries accept
SIDES = (("at_least", "of at least", le), ("above", "above", lt), ("at_most", "of at most", ge))


def expect_within_bounds(prefix: str, node: Any) -> None:
    """Raise `ValueError` for a value of a dataclass object that is outside of its field's bounds.

    `prefix`: goes before a field's name in the error. None is allowed where the field's type
    has it. Beside the bounds of `bounded` there is `or_a`: a class whose objects are allowed, too.
    """
    for entry in fields(node):
        key, value, bounds = prefix + entry.name, getattr(node, entry.name), entry.metadata
        if value is None and "None" in str(entry.type):
            continue
        if isinstance(value, bounds.get("or_a", ())):
            continue
        if "one_of" in bounds and value not in bounds["one_of"]:
            raise ValueError(f"{key} must be one of {', '.join(bounds['one_of'])}, not {value}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        for name, words, fits in SIDES:
            if name in bounds and not (number and fits(bounds[name], value) and value < math.inf):
                raise ValueError(f"{key} must be a number {words} {bounds[name]:g}, not {value!r}")
        below = bounds.get("below", LARGEST + 1 if isinstance(value, int) else math.inf)
        if number and not value < below:
            raise ValueError(f"{key} must be below {below}, not {value}")


class OptionGroup:
    """Base class of dataclasses with some options of a class that a configuration names.

    The constructor takes the whole group, as in
    `SparseAveraging(participation=Participation(quorum=0.8))`. The YAML file and the command line
    take the group's fields as options of the class itself, as in `strategy.quorum=0.8`. Only the
    dataclass declares a field's type and bounds. A value outside of them raises `ValueError`. Its
    defaults are those of Python code; the YAML file of a strategy lists the defaults of a run.
    """

    def __post_init__(self) -> None:
        """Check the fields' bounds."""
        expect_within_bounds("", self)
