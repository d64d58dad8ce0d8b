"""Data sets that a seeded generator makes: they need no download and no file.

Each is a function in a module of this package, which a file of `conf/dataset/` names as `_target_`.
They use `numpy.random.RandomState`, whose streams numpy guarantees, so the samples of a seed are
the same on every device.
"""

from edgewire.task.errors import TaskError


def expect_at_least(least: float, **options: float) -> None:
    """Raise `TaskError` for the first option of a data set that is below `least`."""
    for name, value in options.items():
        if not value >= least:
            raise TaskError(f"dataset.{name}={value}: give at least {least}")
