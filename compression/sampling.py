"""Helpers to select coordinates: samples of a vector, choice among ties, and clocks by weight.

For a sample by weight each entry gets a clock, and the first k clocks to ring are chosen. Entry i's
clock rings at -log(1 - U_i) / w_i, U_i uniform (Efraimidis & Spirakis 2006).
"""

import math
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from .base import Indices
from .buffers import Scalar, workspace

Weights = NDArray[np.float32] | NDArray[np.float64]

BLOCK = 1 << 17  # entries per block; with half as many, functions take 8 % more time
TINY = 1 << 11  # a vector of at most TINY entries is not sampled, because that would not save time
SAMPLE = 1 << 16  # the most entries in a sample
STEPS = 1 << 16  # number of different values of 16 random bits


def sample(values: NDArray[Scalar], size: int = 0) -> NDArray[Scalar]:
    """Return a sample (size,) of (n,) values: one random value from each of ``size`` equal parts.

    The positions are random, because a regular stride could coincide with a period of the values.
    """
    n = len(values)
    size = size or min(int(n ** (2 / 3)), SAMPLE)  # a larger sample would cost more than it saves
    return values.take(_places(n, size), mode="clip")


def rank(size: int, share: float, side: int = 1) -> int:
    """Return the rank in a sample that corresponds to ``share``, moved by 3 standard deviations.

    ``side``: 1 moves it up, -1 down. ``size``: entries of the sample.
    """
    return math.floor(size * share + side * (3 * math.sqrt(size * share * (1 - share)) + 3))


def bits16(size: int, generator: np.random.Generator) -> NDArray[np.uint16]:
    """Return (size,) uniform random uint16, drawn 64 bits at a time in half of the time."""
    return generator.integers(0, 1 << 64, -(-size // 4), dtype=np.uint64).view(np.uint16)[:size]


def keep(keys: NDArray[np.int32] | NDArray[np.int64], k: int, least: int) -> NDArray[np.bool]:
    """Return an (m,) mask of the k largest of (m,) keys; among equal keys the first are selected.

    ``least``: the k-th largest key.
    """
    mask: NDArray[np.bool] = np.greater_equal(keys, least)
    surplus = np.count_nonzero(mask) - k
    if surplus:
        mask[(keys == least).nonzero()[0][-surplus:]] = False
    return mask


@lru_cache(maxsize=64)
def _places(n: int, size: int) -> NDArray[np.intp]:
    return (_offsets()[:size] * (n / size)).astype(np.intp)


@cache
def _offsets() -> NDArray[np.float64]:
    return np.arange(SAMPLE) + np.random.default_rng(0).random(SAMPLE)


def horizon(weights: Weights, k: int) -> float:
    """Return a time before which k clocks, or a few more, have rung in nearly all cases.

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

    The result is (m,) uint32, m <= k. A clock rings before ``until`` only if U < until * w. The
    first 16 bits of U exclude nearly all others. For the rest 53 more bits are drawn.
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
