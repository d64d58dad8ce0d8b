"""Samples entries by weight: each entry gets a clock, and the first k clocks to ring are chosen.

Entry i's clock rings at -log(1 - U_i) / w_i, U_i uniform (Efraimidis & Spirakis 2006).
"""

import math

import numpy as np
from numpy.typing import NDArray

from .base import Indices
from .buffers import workspace
from .sampling import BLOCK, STEPS, TINY, bits16, keep, rank, sample

Weights = NDArray[np.float32] | NDArray[np.float64]


def horizon(weights: Weights, k: int) -> float:
    """Return a time before which k clocks, or a few more, have rung in nearly all cases.

    The entry with the weight w has a clock that rings at an exponential time with the rate w.
    Newton's method solves sum(1 - exp(-t * w)) = rank for t, with a sample of the weights w. The
    sum is concave in t, so Newton steps from below never exceed the solution. The result is
    infinity if the sample has too few positive weights.
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
        step = (wanted - len(rates) + silent.sum()) / (silent * rates).sum()  # @ starts threads
        time += step
    return float(time / unit)


def first_to_ring(
    weights: Weights, k: int, until: float, generator: np.random.Generator
) -> Indices:
    """Return the indices of the at most k entries whose clocks ring first, before ``until``.

    The result is (m,) uint32, m <= k. The clock of an entry with the weight w rings at
    -log(1 - U) / w, U uniform. It rings before ``until`` only if U < until * w. The first 16 bits
    of U exclude nearly all entries that do not satisfy this. For the remaining entries 53 more bits
    are drawn.
    """
    n = len(weights)
    scale = until * STEPS * (1 + 1e-6)  # the margin covers products that are rounded down
    real = np.float32 if weights.dtype == np.float32 and 1e-30 < scale < 1e30 else np.float64
    limits = workspace("clocks.limits", BLOCK, real)
    # `edgewire.compression.selection` does not use these two buffers while this function runs.
    mask = workspace("selection.mask", BLOCK, np.bool)
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
    # The bits of floats >= 0 have the order of the floats. After inversion the earliest clock has
    # the largest key.
    keys = ~clocks[:done].view(np.int64)
    return found[:done][keep(keys, k, int(np.partition(keys, done - k)[done - k]))]
