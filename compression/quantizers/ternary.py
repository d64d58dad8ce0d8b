"""TernGrad: random levels -1, 0, 1 and one scale per tensor (Wen et al., NeurIPS 2017)."""

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
    Segments,
    Spec,
    TensorSlices,
    Vector,
    expect_params,
)
from ..registry import register
from ..validation import expect_at_least
from .packing import TRITS, pack_trits, unpack_trits
from .rounding import round_by_chance
from .scaling import (
    blocks,
    check_scales,
    divide,
    magnitudes,
    multiply,
    temporary,
)

_F4 = np.dtype("<f4")
_U1 = np.dtype("u1")


@register("quantizer")
@dataclass(frozen=True)
class Ternary(Quantizer):
    """Replaces x by sign(x) * scale with probability |x| / scale, and otherwise by 0.

    This is TernGrad with one scale per layer, max |x| of a tensor after gradient clipping. Values
    beyond ``clip`` standard deviations of their tensor are clipped; 0 switches clipping off. The
    method is unbiased for the clipped values. The standard deviation is computed about 0, so it is
    the root mean square. About the mean it would be 0 for a tensor of equal entries. Each node has
    different scales. In the paper the workers agree on the largest scale, in order to add ternary
    gradients.

    Error: at most max(|x|, scale). The bias is at most 2^-22 scale.
    Streams: T float32 scales; five levels per byte, as base-3 digits of level + 1.
    """

    name: ClassVar[str] = "ternary"
    id: ClassVar[int] = 6
    unbiased: ClassVar[bool] = True

    clip: float = 2.5

    def __post_init__(self) -> None:
        expect_at_least(self.name, "clip", self.clip, 0)

    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Divide values by their tensor's scale, round at random, and pack five levels per byte.

        The values are processed in blocks that fit into the cache.
        """
        scales = self._scales(values, parts.segments)
        levels = np.empty(len(values), dtype=np.int8)
        work = temporary(parts.segments)
        draws = np.empty_like(work)
        for block in blocks(parts.segments):
            scaled = divide(values, scales, block, work)
            round_by_chance(scaled, 1, rng.generator, draws[: len(scaled)])  # this also clips
            np.copyto(levels[block.whole], scaled, casting="unsafe")
        return scales.astype(_F4, copy=False), cast(Array, pack_trits(levels))

    @classmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per tensor, one byte for five values."""
        expect_params(params)
        scales = Spec(Kind.FLOATS, _F4, len(parts.segments) - 1)
        return scales, Spec(Kind.LEVELS, _U1, -(-int(parts.segments[-1]) // TRITS), 3**TRITS)

    @classmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], parts: TensorSlices
    ) -> Vector:
        """Multiply each level by its tensor's scale.

        Raises PayloadError for bytes above 242, for padding other than levels 0, and for scales
        that are negative or not finite.
        """
        scales = cast(Vector, streams[0].astype(np.float32, copy=False))
        check_scales(scales, 1)
        levels = unpack_trits(cast(NDArray[np.uint8], streams[1]), int(parts.segments[-1]))
        return multiply(levels, scales, parts.segments)

    def error_bound(self, values: Vector, parts: TensorSlices) -> Bounds:
        """Return the larger of |x| (the error if rounded to 0) and scale - |x| (if rounded up).

        Values beyond the scale are clipped, so their error is the distance to the scale.
        """
        sizes = np.abs(values.astype(np.float64))
        scales = np.repeat(self._scales(values, parts.segments), np.diff(parts.segments))
        lost = np.where(sizes < scales, sizes, 0)  # the error of a value that is rounded to 0
        return np.maximum(lost, np.abs(scales - sizes))

    def _scales(self, values: Vector, segments: Segments) -> Vector:
        """Return (T,) scales, max |x| of each tensor after clipping."""
        largest = magnitudes(values, segments)
        if not self.clip:
            return largest
        squares = np.zeros(len(largest))
        work = temporary(segments)
        for block in blocks(segments):
            scaled = divide(values, largest, block, work)  # squares of x itself could overflow
            np.square(scaled, out=scaled)
            squares[block.tensors] += np.add.reduceat(scaled, block.starts)
        deviations = np.sqrt(squares / np.maximum(np.diff(segments), 1)) * largest
        return cast(Vector, np.minimum(largest, self.clip * deviations).astype(np.float32))
