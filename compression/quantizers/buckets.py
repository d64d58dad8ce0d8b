"""Helpers of quantizers that use one scale per bucket of consecutive values, across tensors."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..base import TensorSlices, Vector
from .scaling import BLOCK

# The smallest and the largest bucket, in values. They limit the number of scales that a decoder
# must process for a payload, and the size of the parts that it processes at once.
SMALLEST, LARGEST = 16, 1 << 16
_TINY = np.finfo(np.float32).smallest_normal
_HUGE = float(np.finfo(np.float32).max)


def count(parts: TensorSlices, size: int) -> int:
    """Return how many buckets the values fill; the last one may be shorter than ``size``."""
    return -(-int(parts.segments[-1]) // size)


def chunks(values: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Divide a vector of length ``values`` into parts of whole buckets that fit into the cache.

    Yields the slice of values and the slice of buckets. Every part except the last holds an even
    number of values, so that the two 4-bit levels of a byte are in the same part.
    """
    step = max(2, BLOCK // size // 2 * 2)
    for first in range(0, values, step * size):
        stop = min(first + step * size, values)
        yield slice(first, stop), slice(first // size, -(-stop // size))


def temporary(values: int, size: int) -> Vector:
    """Return an uninitialised array as long as the largest part that `chunks` yields."""
    return np.empty(min(max(BLOCK, 2 * size), values), dtype=np.float32)


def magnitudes(values: Vector, size: int) -> Vector:
    """Return (b,) float32, max |x| of each bucket of (k,) values."""
    found = np.empty(-(-len(values) // size), dtype=np.float32)
    work = temporary(len(values), size)
    starts = np.arange(0, len(work), size)
    for here, buckets in chunks(len(values), size):
        sizes = np.abs(values[here], out=work[: here.stop - here.start])
        number = buckets.stop - buckets.start
        np.maximum.reduceat(sizes, starts[:number], out=found[buckets])
    return found


def norms(values: Vector, size: int) -> Vector:
    """Return (b,) float32, each bucket's L2 norm, at most float32's largest number."""
    largest = magnitudes(values, size)
    found = np.empty(len(largest))
    work = temporary(len(values), size)
    starts = np.arange(0, len(work), size)
    for here, buckets in chunks(len(values), size):
        scaled = divide(values[here], largest[buckets], size, work)
        np.square(scaled, out=scaled)
        found[buckets] = np.add.reduceat(scaled, starts[: buckets.stop - buckets.start])
    norm: Vector = np.minimum(np.sqrt(found) * largest, _HUGE).astype(np.float32)
    return norm


def steps(largest: Vector, levels: int) -> Vector:
    """Return each scale, ``largest / levels`` of a bucket or a tensor, as (b,) float32.

    A scale times ``levels`` is finite. The quotient is rounded to nearest. A subnormal quotient is
    rounded up instead, because its rounding error can be half of the quotient.
    """
    found = largest / np.float32(levels)
    if len(found) and found.min() >= _TINY and found.max() <= _HUGE / (levels + 1):
        return found
    reach = found.astype(np.float64) * levels
    low = (found < _TINY) & (reach < largest)
    found[low] = np.nextafter(found[low], np.float32(np.inf))
    high = reach > _HUGE
    found[high] = np.nextafter(found[high], np.float32(0))
    return found


def divide(values: Vector, scales: Vector, size: int, work: Vector) -> Vector:
    """Divide (m,) values by their buckets' scales, into ``work``; the first begins a bucket."""
    # Values are not multiplied by 1 / scale, which overflows for the smallest scales. A bucket with
    # the scale 0 holds only zeros.
    divisors = np.where(scales == 0, np.float32(1), scales)
    scaled = work[: len(values)]
    _by_bucket(np.divide, values, divisors, size, scaled)
    return scaled


def multiply(levels: NDArray[np.int8], scales: Vector, size: int, out: Vector) -> None:
    """Set ``out``, (m,), to each level times its bucket's scale; the first begins a bucket."""
    np.copyto(out, levels)
    _by_bucket(np.multiply, out, scales, size, out)


def _by_bucket(how: np.ufunc, values: Vector, scales: Vector, size: int, out: Vector) -> None:
    """Apply ``how`` to each value and its bucket's scale; the last bucket may be shorter."""
    rows = len(values) // size
    whole = rows * size
    how(
        values[:whole].reshape(rows, size), scales[:rows, None], out=out[:whole].reshape(rows, size)
    )
    if whole < len(values):
        how(values[whole:], scales[rows], out=out[whole:])
