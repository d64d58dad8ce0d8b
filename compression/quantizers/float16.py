"""float16, half precision, after each tensor is divided by its largest magnitude."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, TensorSlices, Vector
from ..registry import register
from .scaling import ScaledQuantizer, blocks, magnitudes

_NORMAL = 14  # float16 numbers of at least 2^-14 are normal, so they have full precision
_ONE = 0x3C00  # the bits of float16 1.0; larger magnitudes have larger bits


@register("quantizer")
@dataclass(frozen=True)
class Float16(ScaledQuantizer):
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

    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f2")
    kind: ClassVar[Kind] = Kind.FLOATS

    def scales(self, values: Vector, parts: TensorSlices) -> Vector:
        """Return (T,) scales: max |x| of each tensor, or the common scale of selected values."""
        scales = magnitudes(values, parts.segments)
        if parts.shapes is None and (common := _common_scale(values, scales)):
            scales.fill(common)
        return scales

    def checked(self, levels: NDArray[Any], parts: TensorSlices) -> NDArray[Any]:
        """Return the values; raise PayloadError for float16 outside [-1, 1]."""
        for block in blocks(parts.segments):
            if (levels[block.whole].view("<u2") & 0x7FFF).max() > _ONE:
                raise PayloadError("payload holds a float16 value beyond its scale")
        return levels


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
