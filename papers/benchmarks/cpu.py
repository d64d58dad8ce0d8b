"""Compares the CPU times of functions in one process, on one thread.

It is for functions that take milliseconds. (`papers.benchmarks.timing` compares whole training
loops in separate processes, by the wall clock.) CPU time does not include other work of the
machine. The functions alternate, so the effect of other work on caches and clock rates is about the
same for all of them.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any


def ratios(
    contestants: Mapping[str, Callable[[], object]],
    baseline: str,
    cycles: int = 10,
    least: float = 0.02,
) -> dict[str, dict[str, Any]]:
    """Measure each function `cycles` (at least 2) times, each time between two of `baseline`.

    `contestants`: name -> function; `baseline`: the name of the function for comparison.

    One measurement repeats the call for at least `least` seconds of CPU time. Each function is
    called once before the first measurement. The time includes freeing the result. Set torch to one
    thread before you call this function. If NumPy calls BLAS, also run with OMP_NUM_THREADS=1,
    because idle BLAS threads use CPU time.

    Returns for each function: `seconds` of CPU time per call (median), `fastest`, and `ratio`
    (median) with its `quartiles`. A ratio compares a measurement with the baseline's measurements
    just before and after it.
    """
    for run in contestants.values():
        run()
    others = [name for name in contestants if name != baseline]
    timed: dict[str, list[float]] = {name: [] for name in contestants}
    compared: dict[str, list[float]] = {name: [] for name in others}
    before = turn(contestants[baseline], least)
    timed[baseline].append(before)
    for cycle in range(cycles):
        for name in others if cycle % 2 == 0 else reversed(others):
            seconds = turn(contestants[name], least)
            after = turn(contestants[baseline], least)
            compared[name].append(2 * seconds / (before + after))
            timed[name].append(seconds)
            timed[baseline].append(after)
            before = after
    return {name: _summary(timed[name], compared.get(name)) for name in contestants}


def turn(run: Callable[[], object], least: float = 0.02) -> float:
    """Return the CPU seconds per call of `run`, over calls that take at least `least` seconds."""
    calls, spent, start = 0, 0.0, time.process_time()
    while not calls or spent < least:
        run()
        calls += 1
        spent = time.process_time() - start
    return spent / calls


def _summary(seconds: list[float], compared: list[float] | None) -> dict[str, Any]:
    summary: dict[str, Any] = {"seconds": _short(median(seconds)), "fastest": _short(min(seconds))}
    if compared is not None:
        low, middle, high = quantiles(compared, n=4, method="inclusive")
        summary |= {"ratio": _short(middle), "quartiles": [_short(low), _short(high)]}
    return summary


def _short(number: float) -> float:
    return float(f"{number:.4g}")
