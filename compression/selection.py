"""Selects coordinates of a vector by magnitude, by threshold, or at random.

The functions read a vector in blocks that fit into the processor's cache, and collect the few
entries that may be selected (candidates). The final choice among the candidates is exact. Indices
are uint32, strictly increasing, and depend only on the arguments.

Magnitudes are compared as integers, because the bits of a float32 without its sign have the same
order. ``partition`` is nearly twice as fast with integers. Subnormal numbers stay distinct, even if
PyTorch has set the processor to flush them to zero.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .base import Indices, Vector
from .buffers import workspace
from .sampling import (
    BLOCK,
    STEPS,
    TINY,
    Weights,
    bits16,
    first_to_ring,
    horizon,
    keep,
    rank,
    sample,
)

Bits = NDArray[np.int32]  # the bits of float32 values; without the sign bit they are magnitudes

DENSE = 1 << 16  # up to DENSE entries are not sampled if more than a quarter is selected
MOST = 0x7FFFFFFF  # the largest magnitude, and the mask of all bits except the sign


def largest(values: Vector, k: int) -> Indices:
    """Return (k,) uint32, the indices of the k largest magnitudes among (n,) finite float32.

    Among entries equal to the k-th largest, those at the lowest indices are chosen.
    Raises ValueError for another dtype, and unless 0 <= k <= n < 2**32.
    """
    bits, n = bits_of(values, k), len(values)
    if k in (0, n):
        return np.arange(k, dtype=np.uint32)
    if n <= TINY or (n <= DENSE and 4 * k > n) or (n <= BLOCK and k == 1):
        return _largest_of_few(bits, k)
    low, high = _bracket(bits, k)
    found, magnitudes = _collect(bits, low, k)
    if len(found) < k:  # the sample's bound was too high: less than once in 700 calls
        low = 0
        found, magnitudes = _collect(bits, low, n)
    return found[keep(magnitudes, k, _kth(magnitudes, k, low, high))]


def _largest_of_few(bits: Bits, k: int) -> Indices:
    """Return the result of `largest` without a sample, for n <= BLOCK entries."""
    n = len(bits)
    magnitudes = np.bitwise_and(bits, MOST, out=workspace("selection.block", n, np.int32))
    if k == 1:
        return np.array([magnitudes.argmax()], dtype=np.uint32)
    tied = n <= TINY or _tied(magnitudes)
    least = (np.sort(magnitudes) if tied else np.partition(magnitudes, n - k))[n - k]
    return keep(magnitudes, k, int(least)).nonzero()[0].astype(np.uint32)


def above(values: Vector, threshold: float, inclusive: bool = False) -> Indices:
    """Return (m,) uint32: all i with |values[i]| > threshold, or >= threshold if ``inclusive``.

    ``values``: (n,) finite float32. ``threshold``: a float, which is not rounded to float32. Raises
    ValueError if the threshold is NaN, and for values of another dtype.
    """
    bits, low = bits_of(values, 0), 0
    if math.isnan(threshold):
        raise ValueError("the threshold is not a number")
    if threshold >= 0:
        nearest = np.float32(min(abs(threshold), float(np.finfo(np.float32).max)))  # abs for -0.0
        low = int(nearest.view(np.int32))
        if float(nearest) < threshold or (float(nearest) == threshold and not inclusive):
            low += 1
    return _collect(bits, low, len(bits))[0].copy()


def uniform(n: int, k: int, generator: np.random.Generator) -> Indices:
    """Return (k,) uint32, k random indices below n; all sets of k indices are equally likely.

    Raises ValueError unless 0 <= k <= n < 2**32.
    """
    check(n, k)
    # If k is small, numpy draws into a set, which is fast. Otherwise numpy shuffles all n, which
    # takes 7 to 18 times as long as the code below.
    if n <= 10_000 or 50 * k < n:
        return np.sort(generator.choice(n, k, replace=False, shuffle=False).astype(np.uint32))
    # Draw each entry independently, with a probability that rarely gives fewer than k entries
    # (4 sigma). All sets with the same number of entries are equally likely. So a uniform set of k
    # is left after a uniform choice of the surplus entries is deleted.
    share = k / n
    odds = math.ceil((share + 4 * math.sqrt(share * (1 - share) / n)) * STEPS)
    found = workspace("selection.found", n, np.uint32)
    mask, done = workspace("selection.mask", BLOCK, np.bool), 0
    while done < k:
        done = 0
        for start in range(0, n, BLOCK):
            size = min(BLOCK, n - start)
            at = np.less(bits16(size, generator), odds, out=mask[:size]).nonzero()[0]
            np.add(at, start, out=found[done : done + len(at)], casting="unsafe")
            done += len(at)
    return np.delete(found[:done], generator.choice(done, done - k, replace=False, shuffle=False))


@np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore")
def weighted(weights: Weights, k: int, generator: np.random.Generator) -> Indices:
    """Return (k,) uint32, k of the indices below n, drawn by weight without replacement.

    ``weights``: (n,) float32 or float64, finite, each 0 or >= 1e-300. The distribution is that of
    torch.multinomial without replacement. If fewer than k weights are positive, all entries with a
    positive weight are chosen, and the remaining indices are drawn uniformly from the other
    entries. Raises ValueError unless 0 <= k <= n < 2**32.

    Each entry i gets a clock that rings at the random time -log(1 - U_i) / w_i, U_i uniform. The
    entries of the first k clocks to ring are chosen (Efraimidis & Spirakis, Information Processing
    Letters 97(5), 2006: algorithm A).
    """
    n = len(weights)
    check(n, k)
    chosen = np.zeros(0, dtype=np.uint32)
    if k == 0:
        return chosen
    for attempt in range(3):
        left = k - len(chosen)
        until = horizon(weights, left) if attempt < 2 else math.inf
        rung = first_to_ring(weights, left, until, generator)
        chosen = np.sort(np.concatenate([chosen, rung]))
        if len(rung) == left or until == math.inf:
            break
        # Too few clocks rang before the horizon. The remaining times are exponential too. So the
        # other clocks may be drawn anew with the same weights.
        weights = weights.copy()
        weights[rung] = 0
    if len(chosen) < k:
        # Draw ranks among the entries not chosen yet, and convert each rank to an index into all n.
        ranks = uniform(n - len(chosen), k - len(chosen), generator)
        before = np.searchsorted(chosen - np.arange(len(chosen)), ranks, side="right")
        chosen = np.sort(np.concatenate([chosen, (ranks + before).astype(np.uint32)]))
    return chosen


def check(n: int, k: int) -> None:
    """Raise ValueError unless 0 <= k <= n < 2**32."""
    if not 0 <= k <= n < 1 << 32:
        raise ValueError(f"cannot select {k} of {n} entries")


def bits_of(values: Vector, k: int) -> Bits:
    """Return a view of (n,) float32 as int32; raises the ValueErrors of `largest`."""
    check(len(values), k)
    if values.dtype != np.float32:
        raise ValueError(f"values are {values.dtype} instead of float32")
    return values.view(np.int32)


def _collect(bits: Bits, low: int, most: int) -> tuple[Indices, Bits]:
    """Return the indices and magnitudes, (m,) each, of the entries >= ``low``, in temporary arrays.

    After ``most`` entries only entries > ``low`` are collected, as most of an update may be zeros.
    """
    n = len(bits)
    work = workspace("selection.block", BLOCK, np.int32)
    mask = workspace("selection.mask", BLOCK, np.bool)
    found = workspace("selection.found", n, np.uint32)
    magnitudes = workspace("selection.magnitudes", n, np.int32)
    done, floor = 0, low - 1
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        here = np.bitwise_and(bits[start : start + size], MOST, out=work[:size])
        at = np.greater(here, floor, out=mask[:size]).nonzero()[0]
        stop = done + len(at)
        np.add(at, start, out=found[done:stop], casting="unsafe")
        here.take(at, out=magnitudes[done:stop], mode="clip")  # "raise" would copy
        done, floor = stop, low if stop >= most else low - 1
    return found[:done], magnitudes[:done]


def _bracket(bits: Bits, k: int) -> tuple[int, int]:
    """Return two bounds between which the k-th largest magnitude of (n,) nearly always lies."""
    found = sample(bits) & MOST
    found.sort()
    size, share = len(found), k / len(bits)
    below, beyond = size - rank(size, share), size - rank(size, share, -1)
    return int(found[below]) if below > 0 else 0, int(found[beyond]) if beyond < size else MOST


def _kth(magnitudes: Bits, k: int, low: int, high: int) -> int:
    """Return the k-th largest of (m,) magnitudes, which is at least ``low``.

    ``partition`` gets only magnitudes strictly between ``low`` and ``high``, or above ``high``. If
    one value dominates, ``partition`` is 30 times slower; such a value is always one of the bounds.
    """
    if np.count_nonzero(magnitudes > low) < k:
        return low
    reached = int(np.count_nonzero(magnitudes >= high))
    if reached < k:
        k -= reached
        between = magnitudes[(magnitudes > low) & (magnitudes < high)]
    elif np.count_nonzero(magnitudes > high) < k:
        return high
    else:
        between = magnitudes[magnitudes > high]
    between.partition(len(between) - k)
    return int(between[len(between) - k])


def _tied(magnitudes: Bits) -> bool:
    """Return whether one value is so frequent that ``sort`` is faster than ``partition``."""
    found = np.sort(sample(magnitudes, 256))
    return bool((found[16:] == found[:-16]).any())
