"""DRIVE: one bit per value after a random rotation (Vargaftik et al., NeurIPS 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Bounds, Vector
from ..registry import register
from ..validation import bounded
from .rotation import MOST, SCALES, Batch, Rotated, RotatedQuantizer, as_signs


@register("quantizer")
@dataclass(frozen=True)
class Drive(RotatedQuantizer):
    """Sends the signs of a random rotation y of x, and one scale per chunk of x.

    This is Algorithm 1 of DRIVE with the structured rotation y = H D x. The decoder computes scale
    D H sign(y). D is a diagonal matrix of random signs. H is Hadamard's matrix with the entries 1
    and -1 (`rotation.transform`). A chunk is up to 8,192 values of one tensor. It is padded with
    zeros to d values, where d is a power of two and at least 8. The paper rotates the whole vector
    at once. In the paper, sender and receiver agree on the seed beforehand; here each payload holds
    a new seed.

    ``scale="unbiased"``: the scale is |x|²/|y|₁, for the mean of many nodes without error feedback.
    The squared error of one node is then π/2 - 1 = 0.571 of |x|² for large d. ``scale="least"``:
    the scale is |y|₁/d², which has the least squared error, 1 - 2/π = 0.363 of |x|². With it, the
    decoded value is 2/π of x on average. So it suits a single sender, or error feedback, which
    corrects this bias.

    No scale makes it quite unbiased: a Hadamard rotation is not as good as a uniform rotation if a
    few entries of x dominate. The squared error of the mean of many nodes falls to
    0.0005 |x|² for Gaussian x of 64 entries or more. It may stay at 0.3 |x|² if all entries except
    four are 0. If one entry dominates, all other entries are lost.

    Streams: the seed, one uint64; C float32 scales; the signs, one bit each, d bits per chunk.
    """

    name: ClassVar[str] = "drive"
    id: ClassVar[int] = 9
    top: ClassVar[int] = 1
    bits = 1

    scale: str = bounded("unbiased", one_of=SCALES)

    def levels(self, rotated: Rotated, planes: Sequence[NDArray[np.uint8]]) -> Bounds:
        """Write a 1 bit for each negative entry; return the scales."""
        batch, largest, squares, entries, spare = rotated
        planes[0][batch.bits] = np.packbits(entries < 0, bitorder="little")
        totals = np.abs(entries, out=spare).sum(axis=1)
        return self.scales_of(largest, squares, totals, entries.shape[1])

    def scales_of(self, largest: Vector, squares: Vector, totals: Vector, size: int) -> Bounds:
        """Return the scales of c chunks, (c,).

        ``largest``: max |x| of each chunk x. ``squares``, ``totals``: |x|² and |y|₁ of the chunks
        after the division by max |x|. ``size``: values per padded chunk.
        """
        scales: Bounds = largest.astype(np.float64)
        if self.scale == "least":
            scales *= totals / np.float32(size * size)
        else:
            scales *= squares / np.maximum(totals, 1)  # below 1 only if all values are 0
        return np.minimum(scales, MOST)

    def unpack(self, batch: Batch, planes: Sequence[NDArray[np.uint8]]) -> None:
        """Write the signs of a batch's entries to ``batch.work``."""
        as_signs(planes[0][batch.bits], batch.work)
