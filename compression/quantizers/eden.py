"""EDEN: one to four bits per value after a random rotation (Vargaftik et al., ICML 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..base import Bounds, Vector
from ..registry import register
from ..validation import bounded
from .rotation import MOST, SCALES, Batch, Rotated, RotatedQuantizer

# The positive half of the levels with the least squared error for a normal distribution (Max 1960,
# "Quantizing for minimum distortion", table I), times UNIT and rounded. Sums of CHUNK such integers
# are exact in float32, so all machines decode the same values.
UNIT = 256
_LEVELS = {
    1: [204],
    2: [116, 387],
    3: [63, 194, 344, 551],
    4: [33, 99, 168, 241, 322, 414, 530, 700],
}


@register("quantizer")
@dataclass(frozen=True)
class Eden(RotatedQuantizer):
    """Sends each entry of a random rotation y of x as one of 2^``bits`` levels, and a scale.

    The entries of y are nearly normal, so the levels are those with the least squared error for a
    normal distribution. A chunk of x, its padding, its rotation and its seed are those of `Drive`,
    and with one bit the two methods are equal.

    ``scale="unbiased"``: the scale makes the decoded chunk's product with x equal |x|² (the paper's
    equation for S). The squared error of one node is 0.571, 0.133, 0.036 and 0.0096 of |x|² with 1
    to 4 bits. Use it for the mean of many nodes without error feedback. ``scale="least"``: the
    scale has the least squared error, 0.363, 0.117, 0.035 and 0.0095 of |x|². Use it for a single
    sender, or with error feedback, which corrects its bias.

    The rotation is not uniform: if a few entries of x dominate, the mean of many nodes keeps an
    error even with ``scale="unbiased"`` (`Drive`).

    Streams: the seed, one uint64; one float32 scale for each chunk. Then follows a stream for each
    bit of a level's number, from the lowest bit. It holds this bit of all entries.
    """

    name: ClassVar[str] = "eden"
    id: ClassVar[int] = 11
    sent_options: ClassVar[int] = 1
    top: ClassVar[int] = 4 * UNIT  # above the largest level

    bits: int = bounded(2, at_least=1, at_most=len(_LEVELS))
    scale: str = bounded("unbiased", one_of=SCALES)

    def finer(self, bits: int) -> Self:
        """Return this method with up to ``bits`` bits per value more, at most 4 in all."""
        return replace(self, bits=min(self.bits + bits, len(_LEVELS)))

    def levels(self, rotated: Rotated, planes: Sequence[NDArray[np.uint8]]) -> Bounds:
        """Write the bits of the number of each entry's level; return the scales."""
        batch, largest, squares, entries, spare = rotated
        levels = levels_of(self.bits)
        norms = np.sqrt(squares)[:, None]
        numbers = np.zeros(entries.shape, dtype=np.uint8)
        for bound in (levels[:-1] + levels[1:]) / np.float32(2 * UNIT):
            numbers += entries > np.multiply(norms, bound, dtype=np.float32)
        for bit, plane in enumerate(planes):
            plane[batch.bits] = np.packbits(numbers >> bit & 1, bitorder="little")
        chosen = np.take(levels, numbers, out=spare, mode="clip")
        return self.scales_of(largest, squares, entries, chosen)

    def scales_of(
        self, largest: Vector, squares: Vector, rotated: Vector, chosen: Vector
    ) -> Bounds:
        """Return the scales of c chunks, (c,).

        ``largest``: max |x| of each chunk x. ``squares``, ``rotated``: |x|² and y of the chunks
        after the division by max |x|. ``chosen``: the levels of y, (c, d).
        """
        scales: Bounds = largest.astype(np.float64)
        products = np.einsum("ij,ij->i", rotated, chosen, dtype=np.float64)
        if self.scale == "least":
            lengths = np.einsum("ij,ij->i", chosen, chosen, dtype=np.float64)
            scales *= products / (lengths * rotated.shape[1])
        else:
            scales *= squares / np.where(products > 0, products, 1)  # 0 only if all values are 0
        return np.clip(scales, 0, MOST)

    def unpack(self, batch: Batch, planes: Sequence[NDArray[np.uint8]]) -> None:
        """Write the levels of a batch's entries to ``batch.work``."""
        numbers = np.zeros(batch.work.size, dtype=np.uint8)
        for bit, plane in enumerate(planes):
            numbers |= np.unpackbits(plane[batch.bits], bitorder="little") << bit
        np.take(levels_of(len(planes)), numbers, out=batch.work.reshape(-1), mode="clip")


def levels_of(bits: int) -> Vector:
    """Return the (2^bits,) float32 levels, increasing integers."""
    half = np.array(_LEVELS[bits], dtype=np.float32)
    return np.concatenate([-half[::-1], half])
