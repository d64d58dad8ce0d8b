"""The largest errors of quantizers, as their docstrings state them."""

import numpy as np

from edgewire.compression.quantizers.eden import levels_of
from edgewire.compression.quantizers.rotation import RotatedQuantizer, batches
from edgewire.compression.quantizers.scaling import magnitudes
from tests.compression.quantizers.values import step_of


def scales_of(quantizer, values, parts):
    """Return the scale of each value, by the quantizer's own first stream."""
    scales = quantizer.encode(values, parts, step_of(0))[0]
    if scales.dtype == np.uint16:  # the upper half of a float32
        scales = (scales.astype(np.uint32) << 16).view(np.float32)
    size = getattr(quantizer, "block", getattr(quantizer, "bucket", None))
    each = np.diff(parts.segments) if size is None else size
    return np.repeat(scales.astype(np.float64), each)[: len(values)]


def int8(quantizer, values, parts):
    return scales_of(quantizer, values, parts) * (0.5 + 2.0**-16)


def int4(quantizer, values, parts):
    return scales_of(quantizer, values, parts) * (0.5 + 2.0**-20) + 2.0**-147


def qsgd(quantizer, values, parts):
    return scales_of(quantizer, values, parts) * (1 + 2.0**-14)


def ternary(quantizer, values, parts):
    """Return |x| (if rounded to 0) or scale - |x| (if rounded up); values are clipped to scale."""
    sizes, scales = np.abs(values.astype(np.float64)), scales_of(quantizer, values, parts)
    return np.maximum(np.where(sizes < scales, sizes, 0), np.abs(scales - sizes))


def bfloat16(quantizer, values, parts):
    """Return half a unit in the last place; the error of clipped values is not larger."""
    return np.maximum(np.abs(values.astype(np.float64)) * 2.0**-8, 2.0**-134)


def float16(quantizer, values, parts):
    largest = magnitudes(values, parts.segments).astype(np.float64)
    scales = np.repeat(largest, np.diff(parts.segments))
    own = np.abs(values.astype(np.float64)) * (2.0**-11 + 2.0**-22)
    return own + scales * (2.0**-25 + 2.0**-45) + 2.0**-149


def powersgd(quantizer, values, parts):
    """Return the tensor's L2 norm: the error is the part of it outside the span of P."""
    found = np.zeros(len(values))
    for start, stop in zip(parts.segments[:-1], parts.segments[1:], strict=True):
        norm = np.linalg.norm(values[start:stop].astype(np.float64))
        found[start:stop] = norm * (1 + 2.0**-10) + 2.0**-148
    return found


def rotated(quantizer, values, parts):
    """Return a multiple of the chunk's L2 norm, for any seed."""
    found = np.empty(len(values))
    for batch in batches(parts.segments):
        own = values[batch.values].reshape(-1, batch.length).astype(np.float64)
        size = batch.work.shape[1]
        norms = np.sqrt(np.einsum("ij,ij->i", own, own)) * share_of(quantizer, size)
        found[batch.values] = np.repeat(norms + size * quantizer.top * 2.0**-149, batch.length)
    return found


def share_of(quantizer, size):
    """Return the largest error in units of the L2 norm of a chunk of d = `size` padded values.

    DRIVE's squared error is d s² - |x|² ("unbiased", with s = scale sqrt(d) of at most |x|), or
    |x|² - d s² ("least"). A decoded entry of EDEN is at most scale Σ|c|, for the levels c, where
    <y, c> is at least |y|₁ times the least level, and |y|₁ is at least |y| = |x| sqrt(d).
    """
    unbiased = quantizer.scale == "unbiased"
    if quantizer.name == "drive":
        return ((size - 1) ** 0.5 if unbiased else 1.0) * (1 + 2.0**-10)
    levels = np.abs(levels_of(quantizer.bits))
    return ((levels.max() / levels.min() * size**0.5 if unbiased else 1.0) + 1) * (1 + 2.0**-8)


BOUNDS = {each.__name__: each for each in (int8, int4, qsgd, ternary, bfloat16, float16, powersgd)}
BOUNDS["lowrank"] = powersgd  # the part outside of a basis, and the levels' error within it


def error_bound(quantizer, values, parts):
    """Return (k,) float64, the largest possible |decoded - value| for each value.

    Of a quantizer without a bound here, it is the error itself.
    """
    if quantizer.exact:
        return np.zeros(len(values))
    if isinstance(quantizer, RotatedQuantizer):
        return rotated(quantizer, values, parts)
    if quantizer.name in BOUNDS:
        return BOUNDS[quantizer.name](quantizer, values, parts)
    streams = quantizer.encode(values, parts, step_of(0))
    decoded = quantizer.decode(streams, parts)
    return np.abs(decoded.astype(np.float64) - values)
