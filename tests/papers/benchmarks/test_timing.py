"""The timer of benchmarks runs blocks of the given length; ratios do not depend on the machine."""

import sys
from collections.abc import Callable

import pytest

from papers.benchmarks.timing import Child, Turns, compare


def contestant(pace: list[float], cost: float) -> Callable[[int], list[float]]:
    """Return a fake for the timer: a round takes `cost` seconds, and 5 % more with every block."""

    def run(rounds: int) -> list[float]:
        pace[0] *= 1.05
        return [cost * pace[0]] * rounds

    return run


def test_ratio_survives_a_change_of_pace() -> None:
    pace = [1.0]
    result = compare(
        {name: contestant(pace, cost) for name, cost in [("bare", 2.0), ("a", 2.2), ("b", 1.0)]},
        cycles=6,
        rounds=3,
    )
    assert result["a"]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert result["b"]["ratio"] == pytest.approx(0.5, rel=0.01)
    assert result["a"]["rounds"] == 18
    assert "ratio" not in result["bare"]


def test_each_block_runs_the_requested_rounds() -> None:
    requests, reports, ran = iter([2, 3, 0]), [], 0
    turns = Turns(lambda: next(requests), reports.append)
    while turns.lap():
        ran += 1
    assert ran == 5
    assert [len(seconds) for seconds in reports] == [2, 3]
    assert all(second >= 0 for seconds in reports for second in seconds)


def test_a_child_that_ends_is_reported() -> None:
    with (
        Child([sys.executable, "-c", "raise SystemExit(3)"]) as child,
        pytest.raises(RuntimeError, match="exit code 3"),
    ):
        child(1)
