"""Numbers on the adviser's command line: each has bounds, and a wrong one gets one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from edgewire.report.errors import ResultsError
from edgewire.report.format import whole

MOST_DEVICES = 100_000


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises `ResultsError` for a wrong command line, and prints no usage."""

    def error(self, message: str) -> NoReturn:
        """Raise `ResultsError`."""
        raise ResultsError(message)


def number(low: float, high: float, above: bool = False) -> Callable[[str], float]:
    """Return a `type` for `argparse`: a number from `low` to `high`.

    `above`: the number must be above `low`.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be a number, not {text}") from error
        if not low <= value <= high or (above and value == low):
            bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"must be a number {bound}, not {text}")
        return value

    return read


def devices(text: str) -> int:
    """Return a number of devices; a `type` for `argparse`."""
    if (value := whole(text)) > MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_DEVICES}, not {text}")
    return value


def share_of(value: float) -> float:
    """Return a share from a share (0.9) or a percentage (90).

    Raises `ResultsError` for another number. A number between 1 and 2 is refused: it can be a wrong
    share or a tiny percentage.
    """
    if 1 < value < 2:
        raise ResultsError(
            f"the goal {value:g} would be {value:g} %: give a share of at most 1, such as 0.9, or "
            "a percentage of at least 2, such as 90"
        )
    share = value / 100 if value > 1 else value
    if not 0 < share <= 1:
        raise ResultsError(f"the goal must be a share from 0 to 1 or a percentage, not {value:g}")
    return share
