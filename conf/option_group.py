"""Declares options: the bounds of a dataclass's fields, and groups of options."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from edgewire.compression.validation import bounded as bounded
from edgewire.compression.validation import expect_bounds


def expect_within_bounds(prefix: str, node: Any) -> None:
    """Raise `ValueError` for a value of a dataclass object that is outside of its field's bounds.

    `prefix`: goes before a field's name in the error. None is allowed where the field's type
    has it. Beside the bounds of `bounded` there is `or_a`: a class whose objects are allowed, too.
    """
    for entry in fields(node):
        value, bounds = getattr(node, entry.name), entry.metadata
        unset = value is None and "None" in str(entry.type)
        if not unset and not isinstance(value, bounds.get("or_a", ())):
            expect_bounds(prefix + entry.name, value, bounds)


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
