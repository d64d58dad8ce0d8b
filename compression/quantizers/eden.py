"""EDEN: one to four bits per value after a random rotation (Vargaftik et al., ICML 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from ..base import (
    Array,
    Bounds,
    Kind,
    Memory,
    PayloadError,
    Quantizer,
    Rng,
    Spec,
    TensorSlices,
    Vector,
    expect_params,
)
from ..registry import register
from ..validation import expect_between, expect_one_of
from .rotation import (
    CHUNK,
    batches,
    random_bits,
    rotate_back,
    rotations,
    runs,
)
from .scaling import check_scales

_U8, _F4, _U1 = np.dtype("<u8"), np.dtype("<f4"), np.dtype("u1")
_MOST = float(np.finfo(np.float32).max)
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
class Eden(Quantizer):
    """Sends each entry of a random rotation y of x as one of 2^``bits`` levels, and a scale.

    The entries of y are nearly normal, so the levels are those with the least squared error for a
    normal distribution. A chunk of x, its padding, its rotation and its seed are those of `Drive`,
    and with one bit the two methods are equal.

    ``scale="unbiased"``: the scale makes the decoded chunk's product with x equal |x|² (the paper's
    equation for S). The squared error of one node is 0.571, 0.133, 0.036 and 0.0096 of |x|² with 1
    to 4 bits. Use it for the mean of many nodes without error feedback. ``scale="least"``: the
    scale has the least squared error, 0.363, 0.117, 0.035 and 0.0095 of |x|². Use it for a single
    sender, or with error feedback, which corrects its bias.

    The attribute ``unbiased`` is False for the reason that `Drive` gives.

    Streams: the seed, one uint64; C float32 scales; for each bit of a level's number, from the
    lowest, this bit of all entries, d bits per chunk.
    """

    name: ClassVar[str] = "eden"
    id: ClassVar[int] = 11

    bits: int = 2
    scale: str = "unbiased"

    def __post_init__(self) -> None:
        expect_between(self.name, "bits", self.bits, 1, len(_LEVELS))
        expect_one_of(self.name, "scale", self.scale, ("unbiased", "least"))

    def params(self) -> tuple[int, ...]:
        """Return the number that the decoder needs: bits per value."""
        return (self.bits,)

    def finer(self, bits: int) -> Self:
        """Return this method with up to ``bits`` bits per value more, at most 4 in all."""
        return replace(self, bits=min(self.bits + bits, len(_LEVELS)))

    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Rotate the values with a new random seed; return the seed, the scales and the levels.

        The values are processed in batches that fit into the cache.
        """
        seed, scales, *planes = (
            np.empty(spec.size, spec.dtype) for spec in self.specs(self.params(), parts)
        )
        seed[:] = rng.generator.bit_generator.random_raw(1)
        signs = random_bits(int(seed[0]), len(planes[0]))
        levels = levels_of(self.bits)
        bounds = (levels[:-1] + levels[1:]) / np.float32(2 * UNIT)
        for batch, largest, squares, rotated, spare in rotations(values, parts.segments, signs):
            norms = np.sqrt(squares)[:, None]
            numbers = np.zeros(rotated.shape, dtype=np.uint8)
            for bound in bounds:
                numbers += rotated > np.multiply(norms, bound, dtype=np.float32)
            for bit, plane in enumerate(planes):
                plane[batch.bits] = np.packbits(numbers >> bit & 1, bitorder="little")
            chosen = np.take(levels, numbers, out=spare, mode="clip")
            scales[batch.chunks] = self.scales_of(largest, squares, rotated, chosen)
        return cast(Sequence[Array], (seed, scales, *planes))

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
        return np.clip(scales, 0, _MOST)

    @classmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: seed, one scale per chunk, bits of padded values."""
        expect_params(params, 1)
        if params[0] not in _LEVELS:
            raise PayloadError(f"payload holds {params[0]} bits per value, not 1 to {len(_LEVELS)}")
        chunks = size = 0
        for run in runs(parts.segments):
            chunks += run.chunks
            size += run.chunks * run.padded // 8
        planes = [Spec(Kind.LEVELS, _U1, size, 256)] * params[0]
        return Spec(Kind.BYTES, _U8, 1), Spec(Kind.FLOATS, _F4, chunks), *planes

    @classmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], parts: TensorSlices
    ) -> Vector:
        """Rotate the levels of each chunk back and multiply by the chunk's scale.

        The rotated levels are integers, which are exact on any machine. Only the product with the
        scale is rounded. Raises PayloadError for scales that are negative or not finite.
        """
        scales = cast(Vector, streams[1])
        planes = cast(Sequence[NDArray[np.uint8]], streams[2:])
        check_scales(scales, 1)
        signs = random_bits(int(cast(NDArray[np.uint64], streams[0])[0]), len(planes[0]))
        levels = levels_of(params[0])
        values = np.empty(int(parts.segments[-1]), dtype=np.float32)
        for batch in batches(parts.segments):
            numbers = np.zeros(batch.work.size, dtype=np.uint8)
            for bit, plane in enumerate(planes):
                numbers |= np.unpackbits(plane[batch.bits], bitorder="little") << bit
            np.take(levels, numbers, out=batch.work.reshape(-1), mode="clip")
            rotate_back(batch, signs, scales, values)
        # A sum of CHUNK levels is below CHUNK * 4 * UNIT.
        if len(scales) and scales.max() > _MOST / (CHUNK * UNIT * 4):
            np.clip(values, -_MOST, _MOST, out=values)
        return values

    def error_bound(self, values: Vector, parts: TensorSlices) -> Bounds:
        """Return a bound that is valid for any seed: a multiple of the chunk's L2 norm.

        An entry of the decoded chunk is at most scale Σ|c|. With 1 bit both are exact: see `Drive`.
        """
        levels = _LEVELS[self.bits]
        bounds = np.empty(len(values))
        for batch in batches(parts.segments):
            own = values[batch.values].reshape(-1, batch.length).astype(np.float64)
            size = batch.work.shape[1]
            # <y, c> is at least |y|_1 times the least level, and |y|_1 at least |y| = |x| sqrt(d).
            most = levels[-1] / levels[0] * np.sqrt(size) if self.scale == "unbiased" else 1.0
            norms = np.sqrt(np.einsum("ij,ij->i", own, own)) * ((most + 1) * (1 + 2.0**-8))
            bounds[batch.values] = np.repeat(norms + size * UNIT * 2.0**-147, batch.length)
        return bounds


def levels_of(bits: int) -> Vector:
    """Return the (2^bits,) float32 levels, increasing integers."""
    half = np.array(_LEVELS[bits], dtype=np.float32)
    return np.concatenate([-half[::-1], half])
