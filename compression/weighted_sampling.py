"""Exponential clocks, one an entry: the first to ring are a draw by weight."""

import math

import numpy as np
from numpy.typing import NDArray

from .base import Indices
from .buffers import workspace
from .sampling import BLOCK, STEPS, TINY, bits16, keep, rank, sample

Weights = NDArray[np.float32] | NDArray[np.float64]


def horizon(weights: Weights, k: int) -> float:
    """Return a time by which k of the clocks have rung, nearly always, and few others.

    From a sample: where sum(1 - exp(-t * w)) is the rank, by Newton's steps,
    which from below never overshoot. Infinity if the sample has too few.
    """
    if len(weights) <= TINY:
        return math.inf
    rates = sample(weights).astype(np.float64)
    wanted = rank(len(rates), k / len(weights))
    if np.count_nonzero(rates) <= wanted:
        return math.inf
    unit = rates.max()
    rates /= unit
    time = step = wanted / rates.sum()
    while step > 1e-3 * time:
        silent = np.exp(-time * rates)
        step = (wanted - len(rates) + silent.sum()) / (silent * rates).sum()  # not @: BLAS threads
        time += step
    return float(time / unit)


def first_to_ring(
    weights: Weights, k: int, until: float, generator: np.random.Generator
) -> Indices:
    """Return (m,) uint32: the first k clocks to ring before the time `until`, or fewer.

    Only where U < until * w can that be. 16 bits of U rule out nearly all others; 53 bits more
    are drawn for the rest.
    """
    n = len(weights)
    scale = until * STEPS * (1 + 1e-6)  # a product rounded down must not rule out any
    real = np.float32 if weights.dtype == np.float32 and 1e-30 < scale < 1e30 else np.float64
    limits = workspace("clocks.limits", BLOCK, real)
    mask = workspace("selection.mask", BLOCK, np.bool)  # two that `selection` does not need now
    found = workspace("selection.found", n, np.uint32)
    clocks = workspace("clocks.times", n, np.float64)
    done = 0
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        here, drawn = weights[start : start + size], bits16(size, generator)
        np.multiply(here, scale, out=limits[:size], dtype=real)
        at = np.less_equal(drawn, limits[:size], out=mask[:size]).nonzero()[0]
        chances = (drawn[at] + generator.random(len(at))) / STEPS
        rates = here[at].astype(np.float64)
        times = np.log1p(-np.minimum(chances, 1 - 2**-53)) / -rates
        ringing = (times < until) & (rates > 0)
        stop = done + int(np.count_nonzero(ringing))
        np.add(at[ringing], start, out=found[done:stop], casting="unsafe")
        clocks[done:stop] = times[ringing]
        done = stop
    if done <= k:
        return found[:done].copy()
    keys = ~clocks[:done].view(np.int64)  # floats >= 0 are ordered as these integers are
    return found[:done][keep(keys, k, int(np.partition(keys, done - k)[done - k]))]
