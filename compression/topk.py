"""Which coordinates of a vector are sent: by magnitude, by threshold, or drawn at random.

Vectors are gone through in blocks that stay in cache, and only the few entries that can matter are
kept; what decides among those is exact. Indices are uint32, strictly increasing, and depend on the
arguments only.

Magnitudes are compared as integers: the bits of a float32 without its sign have the same order.
``partition`` is nearly twice as fast on them, and subnormal numbers stay apart even where torch
has told the processor to flush them to zero.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .base import Indices, Vector
from .buffers import workspace
from .sampling import BLOCK, STEPS, TINY, bits16, keep, rank, sample
from .weighted_sampling import Weights, first_to_ring, horizon

Bits = NDArray[np.int32]  # of float32; without their signs, magnitudes

DENSE = 1 << 16  # a sample of so few is not worth it, if a quarter is wanted
MOST = 0x7FFFFFFF  # of a magnitude; and all bits but the sign


def largest(values: Vector, k: int) -> Indices:
    """Return (k,) uint32: the k entries of (n,) finite float32 largest in magnitude.

    Of those equal to the k-th largest, the ones at the lowest indices.
    Raises ValueError for another dtype, and unless 0 <= k <= n < 2**32.
    """
    bits, n = bits_of(values, k), len(values)
    if k in (0, n):
        return np.arange(k, dtype=np.uint32)
    if n <= TINY or (n <= DENSE and 4 * k > n) or (n <= BLOCK and k == 1):
        return _largest_of_few(bits, k)
    low, high = _bracket(bits, k)
    found, magnitudes = _collect(bits, low, k)
    if len(found) < k:  # the sample misled, as it does less than once in 700 times
        low = 0
        found, magnitudes = _collect(bits, low, n)
    return found[keep(magnitudes, k, _kth(magnitudes, k, low, high))]


def _largest_of_few(bits: Bits, k: int) -> Indices:
    """Return `largest` of (n,) entries, n <= BLOCK, that are not worth a sample."""
    n = len(bits)
    magnitudes = np.bitwise_and(bits, MOST, out=workspace("selection.block", n, np.int32))
    if k == 1:
        return np.array([magnitudes.argmax()], dtype=np.uint32)
    tied = n <= TINY or _tied(magnitudes)
    least = (np.sort(magnitudes) if tied else np.partition(magnitudes, n - k))[n - k]
    return keep(magnitudes, k, int(least)).nonzero()[0].astype(np.uint32)


def above(values: Vector, threshold: float, inclusive: bool = False) -> Indices:
    """Return (m,) uint32: all i with |values[i]| > threshold, or >= if ``inclusive``.

    ``values`` is (n,) finite float32; the threshold is compared as it is, not rounded to float32.
    Raises ValueError for a threshold that is NaN, and for another dtype.
    """
    bits, low = bits_of(values, 0), 0
    if math.isnan(threshold):
        raise ValueError("the threshold is not a number")
    if threshold >= 0:
        nearest = np.float32(min(abs(threshold), float(np.finfo(np.float32).max)))  # abs: -0.0
        low = int(nearest.view(np.int32))
        if float(nearest) < threshold or (float(nearest) == threshold and not inclusive):
            low += 1
    return _collect(bits, low, len(bits))[0].copy()


def uniform(n: int, k: int, generator: np.random.Generator) -> Indices:
    """Return (k,) uint32: k of n without replacement, every set of k equally likely.

    Raises ValueError unless 0 <= k <= n < 2**32.
    """
    check(n, k)
    # numpy draws few of many into a set, else it shuffles all n: 7 to 18 times slower than below.
    if n <= 10_000 or 50 * k < n:
        return np.sort(generator.choice(n, k, replace=False, shuffle=False).astype(np.uint32))
    # Each entry by itself, at odds that give fewer than k rarely (4 sigma). Given how many there
    # are, all sets of so many are equally likely, and still are without a uniform part of them.
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
    """Return (k,) uint32: k of n without replacement, drawn one after the other by weight.

    ``weights`` is (n,) float32 or float64, finite, and 0 or >= 1e-300. The law is that of
    torch.multinomial without replacement. If fewer than k are positive, all of those and a uniform
    choice of the others. Raises ValueError unless 0 <= k <= n < 2**32.

    Entry i gets a clock -log(1 - U_i) / w_i, U_i uniform, and the first k to ring are it
    (Efraimidis & Spirakis, Information Processing Letters 97(5), 2006: algorithm A).
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
        # Too few rang before the horizon. What is left of the other clocks is exponential again,
        # with the same rates and independent of what rang: new ones have the same law.
        weights = weights.copy()
        weights[rung] = 0
    if len(chosen) < k:
        ranks = uniform(n - len(chosen), k - len(chosen), generator)  # among the others
        before = np.searchsorted(chosen - np.arange(len(chosen)), ranks, side="right")
        chosen = np.sort(np.concatenate([chosen, (ranks + before).astype(np.uint32)]))
    return chosen


def check(n: int, k: int) -> None:
    """Raise ValueError unless k of n entries can be selected."""
    if not 0 <= k <= n < 1 << 32:
        raise ValueError(f"cannot select {k} of {n} entries")


def bits_of(values: Vector, k: int) -> Bits:
    """Return (n,) float32 as the bits it is made of. Raises ValueError as `largest` does."""
    check(len(values), k)
    if values.dtype != np.float32:
        raise ValueError(f"values are {values.dtype} instead of float32")
    return values.view(np.int32)


def _collect(bits: Bits, low: int, most: int) -> tuple[Indices, Bits]:
    """Return indices (m,) and magnitudes (m,), in the workspace, of entries >= ``low``.

    Once there are ``most``, only of those above it: the first ``most`` in size are among these. An
    update may be zeros but for a few entries.
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
        here.take(at, out=magnitudes[done:stop], mode="clip")  # "raise" would buffer
        done, floor = stop, low if stop >= most else low - 1
    return found[:done], magnitudes[:done]


def _bracket(bits: Bits, k: int) -> tuple[int, int]:
    """Return two magnitudes, nearly always below and above the k-th largest of (n,), or it.

    They are a sample's, 3 sigma to both sides of where the k-th largest of n would be in it.
    """
    found = sample(bits) & MOST
    found.sort()
    size, share = len(found), k / len(bits)
    below, beyond = size - rank(size, share), size - rank(size, share, -1)
    return int(found[below]) if below > 0 else 0, int(found[beyond]) if beyond < size else MOST


def _kth(magnitudes: Bits, k: int, low: int, high: int) -> int:
    """Return the k-th largest of (m,) magnitudes, which is not less than ``low``.

    ``partition`` gets only what is strictly between the two or beyond: it is 30 times slower where
    one value dominates, and such a value is one of the two.
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
    """Whether one value dominates (n,) magnitudes: ``sort`` is fast then, ``partition`` is not."""
    found = np.sort(sample(magnitudes, 256))
    return bool((found[16:] == found[:-16]).any())
