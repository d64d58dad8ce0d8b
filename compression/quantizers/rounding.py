"""Unbiased stochastic rounding, and conversion of a float32's upper 16 bits to float32."""

import numpy as np
from numpy.typing import NDArray

from ..base import Vector


def round_by_chance(
    scaled: Vector, top: int, generator: np.random.Generator, draws: Vector
) -> None:
    """Round (m,) float32 to integers in [-top, top] at random, in place; 0 stays 0.

    x becomes floor(x + u), where u is uniform among the multiples of 2^-24 in [0, 1). The
    expectation is x, up to 2^-24 and to float32's rounding of x + u. A result of top + 1, which
    this rounding can cause, is clipped. ``draws``: (m,) float32, a temporary array.
    """
    generator.random(dtype=np.float32, out=draws)
    np.add(scaled, draws, out=scaled)
    np.floor(scaled, out=scaled)
    np.clip(scaled, -top, top, out=scaled)


def widen(halves: NDArray[np.generic], out: Vector | None = None) -> Vector:
    """Return (m,) float32 with the upper 16 bits ``halves``; ``out``, if given, is the result."""
    values = np.empty(len(halves), dtype=np.float32) if out is None else out
    bits = values.view(np.uint32)
    np.copyto(bits, halves, casting="unsafe")
    np.left_shift(bits, 16, out=bits)
    return values
