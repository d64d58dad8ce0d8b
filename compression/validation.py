"""Checks values that Python code passes to compression methods, with errors of one line."""

from collections.abc import Sequence

if __name__.partition(".")[0] == "compression":  # only the path knows this folder
    raise ImportError("compression is called edgewire.compression now", name=__name__)
FOREVER = 1e9  # seconds; a timeout of FOREVER or more means no timeout


def expect_share(method: str, option: str, value: float) -> None:
    """Raise ValueError if an option's value is not in (0, 1]."""
    if not 0 < value <= 1:  # `not` also finds NaN
        raise ValueError(f"option {option} of {method} must be above 0 and up to 1, not {value:g}")


def expect_below_one(method: str, option: str, value: float) -> None:
    """Raise ValueError if an option's value is not in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"option {option} of {method} must be from 0 to below 1, not {value:g}")


def expect_between(method: str, option: str, value: float, low: float, high: float) -> None:
    """Raise ValueError if an option's value is not in [low, high]."""
    if not low <= value <= high:
        raise ValueError(
            f"option {option} of {method} must be from {low:g} to {high:g}, not {value:g}"
        )


def expect_at_least(method: str, option: str, value: float, low: float) -> None:
    """Raise ValueError if an option's value is below ``low``, infinite or NaN."""
    if not low <= value < float("inf"):
        raise ValueError(f"option {option} of {method} must be at least {low:g}, not {value:g}")


def expect_one_of(method: str, option: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError if an option's value is not in ``choices``."""
    if value not in choices:
        listed = " or ".join(choices)
        raise ValueError(f"option {option} of {method} must be {listed}, not {value!r}")


def expect_kinds(**options: tuple[object, type]) -> None:
    """Raise `TypeError` for an option that is not of its class: (value, class) by name."""
    for name, (value, kind) in options.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
