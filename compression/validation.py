"""Checks of methods' options: each raises ValueError with one line for a value out of range."""

from collections.abc import Sequence


def expect_share(method: str, option: str, value: float) -> None:
    """Refuse a share outside of (0, 1]."""
    if not 0 < value <= 1:  # `not` also refuses NaN
        raise ValueError(f"option {option} of {method} must be above 0 and up to 1, not {value:g}")


def expect_below_one(method: str, option: str, value: float) -> None:
    """Refuse a share to leave out that lies outside of [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"option {option} of {method} must be from 0 to below 1, not {value:g}")


def expect_between(method: str, option: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside of [low, high]."""
    if not low <= value <= high:
        raise ValueError(
            f"option {option} of {method} must be from {low:g} to {high:g}, not {value:g}"
        )


def expect_at_least(method: str, option: str, value: float, low: float) -> None:
    """Refuse a number below ``low``, infinity and NaN."""
    if not low <= value < float("inf"):
        raise ValueError(f"option {option} of {method} must be at least {low:g}, not {value:g}")


def expect_one_of(method: str, option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not among ``choices``."""
    if value not in choices:
        words = " or ".join(choices)
        raise ValueError(f"option {option} of {method} must be {words}, not {value!r}")
