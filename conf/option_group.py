"""Groups of options: one argument of a constructor, but separate keys in the configuration."""

from __future__ import annotations


class OptionGroup:
    """Base class of dataclasses with some options of a class that a configuration names.

    The constructor takes the whole group, as in
    `SparseAveraging(participation=Participation(quorum=0.8))`. The YAML file and the command line
    take the group's fields as options of the class itself, as in `strategy.quorum=0.8`. Only the
    dataclass declares a field's type. It checks values in `__post_init__`, and raises `ValueError`.
    Its defaults are those of Python code; the YAML file of a strategy lists the defaults of a run.
    """
