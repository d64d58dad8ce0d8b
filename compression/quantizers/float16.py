"""float16, half precision, after each tensor is divided by its largest magnitude."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

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
from .scaling import (
    blocks,
    check_scales,
    divide,
    magnitudes,
    multiply,
    temporary,
)

_F2 = np.dtype("<f2")
_F4 = np.dtype("<f4")
_NORMAL = 14  # float16 numbers of at least 2^-14 are normal, so they have full precision
_ONE = 0x3C00  # the bits of float16 1.0; larger magnitudes have larger bits


@register("quantizer")
@dataclass(frozen=True)
class Float16(Quantizer):
    """Sends x / scale in IEEE 754 half precision, where scale = max |x| of the tensor.

    Without a scale, most values of a small update would be subnormal in half precision. Selected
    values share one scale if they are all within a factor of 2^14. With this scale the smallest
    value becomes a power of two. Then most values have one of two or three exponents, and need 8 %
    fewer bytes after coding. Error: at most |x| 2^-11 + scale 2^-25, plus float32's rounding.
    Streams: T float32 scales, k float16 in [-1, 1].
    """

    name: ClassVar[str] = "float16"
    id: ClassVar[int] = 1
    keeps_norm: ClassVar[bool] = True

    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Divide each tensor by its scale, and round the values to float16."""
        scales = magnitudes(values, parts.segments)
        if parts.shapes is None and (common := _common_scale(values, scales)):
            scales.fill(common)
        halves = np.empty(len(values), dtype=_F2)
        work = temporary(parts.segments)
        for block in blocks(parts.segments):
            halves[block.whole] = divide(values, scales, block, work)
        return scales.astype(_F4, copy=False), halves

    @classmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per tensor, one float16 per value."""
        expect_params(params)
        scales = Spec(Kind.FLOATS, _F4, len(parts.segments) - 1)
        return scales, Spec(Kind.FLOATS, _F2, int(parts.segments[-1]))

    @classmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], parts: TensorSlices
    ) -> Vector:
        """Multiply each value by its tensor's scale.

        Raises PayloadError for float16 outside [-1, 1], and for scales that are not finite.
        """
        scales = cast(Vector, streams[0].astype(np.float32, copy=False))
        halves = streams[1]
        check_scales(scales, 1)
        for block in blocks(parts.segments):
            if (halves[block.whole].view("<u2") & 0x7FFF).max() > _ONE:
                raise PayloadError("payload holds a float16 value beyond its scale")
        return multiply(halves, scales, parts.segments)

    def error_bound(self, values: Vector, parts: TensorSlices) -> Bounds:
        """Return half a unit in the last place of float16, plus float32's rounding error."""
        scales = np.repeat(
            magnitudes(values, parts.segments).astype(np.float64), np.diff(parts.segments)
        )
        own = np.abs(values.astype(np.float64)) * (2.0**-11 + 2.0**-22)
        return own + scales * (2.0**-25 + 2.0**-45) + 2.0**-149


def _common_scale(values: Vector, largest: Vector) -> np.float32:
    """Return the least scale >= max |x| that is the smallest |x| > 0 times a power of two.

    Returns 0 if this power of two exceeds 2^14, or if the scale is not finite.
    """
    magnitudes = np.abs(values)
    least = magnitudes.min(initial=np.inf, where=magnitudes > 0)
    top = largest.max(initial=0)
    if not 0 < least <= top:
        return np.float32(0)
    steps = int(np.ceil(np.log2(float(top) / float(least))))
    scale = np.float32(np.ldexp(least, steps))
    if scale < top:  # the logarithm was rounded down
        scale, steps = scale * np.float32(2), steps + 1
    return scale if steps <= _NORMAL and np.isfinite(scale) else np.float32(0)
