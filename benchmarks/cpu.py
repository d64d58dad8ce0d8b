"""CPU time of functions side by side, in one process and on one thread.

Where `benchmarks.timing` sets whole training loops in processes of their own against each other by
the wall clock, this is for functions of milliseconds: the process's own CPU time does not count
what else the machine does, and the turns even out what that does to caches and clock rates.
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
    """Run all contestants in turns, `cycles` (at least 2) times, each between two baselines.

    A turn is one call, or as many as take `least` seconds; each contestant is called once before
    the clock starts. What a call returns is freed on the clock. Set torch to one thread before, and
    run with OMP_NUM_THREADS=1 where numpy calls BLAS: its idle threads spin, and that counts.

    Returns for each: `seconds` of CPU time a call (median), `fastest`, and against the baseline's
    turns just before and after `ratio` (median) and its `quartiles`.
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
    """CPU seconds a call of `run`, over as many calls as take `least` seconds."""
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
