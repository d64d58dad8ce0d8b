"""DRIVE: one bit per value after a random rotation (Vargaftik et al., NeurIPS 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..base import (
    Array,
    Bounds,
    Kind,
    Memory,
    Quantizer,
    Rng,
    Spec,
    TensorSlices,
    Vector,
    expect_params,
)
from ..registry import register
from ..validation import expect_one_of
from .rotation import (
    CHUNK,
    as_signs,
    batches,
    random_bits,
    rotate_back,
    rotations,
    runs,
)
from .scaling import check_scales

_U8, _F4, _U1 = np.dtype("<u8"), np.dtype("<f4"), np.dtype("u1")
_MOST = float(np.finfo(np.float32).max)


@register("quantizer")
@dataclass(frozen=True)
class Drive(Quantizer):
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

    The attribute ``unbiased`` is False. Reason: a Hadamard rotation is not as good as a uniform
    rotation if a few entries of x dominate. The squared error of the mean of many nodes falls to
    0.0005 |x|² for Gaussian x of 64 entries or more. It may stay at 0.3 |x|² if all entries except
    four are 0. If one entry dominates, all other entries are lost.

    Streams: the seed, one uint64; C float32 scales; the signs, one bit each, d bits per chunk.
    """

    name: ClassVar[str] = "drive"
    id: ClassVar[int] = 9

    scale: str = "unbiased"

    def __post_init__(self) -> None:
        expect_one_of(self.name, "scale", self.scale, ("unbiased", "least"))

    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Rotate the values with a new random seed; return the seed, the scales and the signs.

        The values are processed in batches that fit into the cache.
        """
        seed, scales, bits = (np.empty(spec.size, spec.dtype) for spec in self.specs((), parts))
        seed[:] = rng.generator.bit_generator.random_raw(1)
        signs = random_bits(int(seed[0]), len(bits))
        for batch, largest, squares, rotated, spare in rotations(values, parts.segments, signs):
            bits[batch.bits] = np.packbits(rotated < 0, bitorder="little")
            totals = np.abs(rotated, out=spare).sum(axis=1)
            scales[batch.chunks] = self.scales_of(largest, squares, totals, rotated.shape[1])
        return cast(Sequence[Array], (seed, scales, bits))

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
        return np.minimum(scales, _MOST)

    @classmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: seed, one scale per chunk, one bit per padded value."""
        expect_params(params)
        chunks = size = 0
        for run in runs(parts.segments):
            chunks += run.chunks
            size += run.chunks * run.padded // 8
        return (
            Spec(Kind.BYTES, _U8, 1),
            Spec(Kind.FLOATS, _F4, chunks),
            Spec(Kind.LEVELS, _U1, size, 256),
        )

    @classmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], parts: TensorSlices
    ) -> Vector:
        """Rotate the signs of each chunk back and multiply by the chunk's scale.

        H sign(y) holds integers up to d, which are exact on any machine. Only the product with the
        scale is rounded. Raises PayloadError for scales that are negative or not finite.
        """
        scales, bits = cast(Vector, streams[1]), cast(NDArray[np.uint8], streams[2])
        check_scales(scales, 1)
        signs = random_bits(int(cast(NDArray[np.uint64], streams[0])[0]), len(bits))
        values = np.empty(int(parts.segments[-1]), dtype=np.float32)
        for batch in batches(parts.segments):
            as_signs(bits[batch.bits], batch.work)
            rotate_back(batch, signs, scales, values)
        if len(scales) and scales.max() > _MOST / CHUNK:
            np.clip(values, -_MOST, _MOST, out=values)
        return values

    def error_bound(self, values: Vector, parts: TensorSlices) -> Bounds:
        """Return |x| sqrt(d - 1) ("unbiased") or |x| ("least"), where |x| is the chunk's L2 norm.

        The bound is valid for any seed. d is the length of the padded chunk. The squared error of
        "unbiased" is d s² - |x|² with s = scale sqrt(d), and s is at most |x|. The squared error of
        "least" is |x|² - d s².
        """
        bounds = np.empty(len(values))
        for batch in batches(parts.segments):
            own = values[batch.values].reshape(-1, batch.length).astype(np.float64)
            size = batch.work.shape[1]
            factor = np.sqrt(size - 1) if self.scale == "unbiased" else 1.0
            norms = np.sqrt(np.einsum("ij,ij->i", own, own)) * (factor * (1 + 2.0**-10))
            bounds[batch.values] = np.repeat(norms + size * 2.0**-149, batch.length)
        return bounds
