"""F2I: converts float32 to symmetric int8 with one scale per tensor.

Source: Edgify's paper on large-batch training on edge devices.
"""

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

_F4 = np.dtype("<f4")
_I1 = np.dtype("i1")
_LEVELS = 127
_TINY = np.finfo(np.float32).smallest_normal
_HUGE = np.finfo(np.float32).max
_SAFE = np.float32(_HUGE / 128)  # 127 times a scale of at most _SAFE is finite


@register("quantizer")
@dataclass(frozen=True)
class Int8(Quantizer):
    """Sends rint(x / scale), where scale = max |x| / 127 of the tensor; if all x are 0, it sends 0.

    Error: at most scale / 2, plus float32's rounding.
    Streams: T float32 scales, k int8 in [-127, 127].
    """

    name: ClassVar[str] = "int8"
    id: ClassVar[int] = 2
    keeps_norm: ClassVar[bool] = True

    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Divide values by their tensor's scale, round half to even, and convert to int8.

        The values are processed in blocks that fit into the cache.
        """
        scales = _scales(magnitudes(values, parts.segments))
        levels = np.empty(len(values), dtype=_I1)
        work = temporary(parts.segments)
        for block in blocks(parts.segments):
            scaled = divide(values, scales, block, work)
            np.rint(scaled, out=scaled)
            np.copyto(levels[block.whole], scaled, casting="unsafe")
        return scales.astype(_F4, copy=False), levels

    @classmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per tensor, one int8 level per value."""
        expect_params(params)
        scales = Spec(Kind.FLOATS, _F4, len(parts.segments) - 1)
        return scales, Spec(Kind.LEVELS, _I1, int(parts.segments[-1]))

    @classmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], parts: TensorSlices
    ) -> Vector:
        """Multiply each level by its tensor's scale.

        Raises PayloadError for the level -128, and if 127 times a scale is infinite.
        """
        scales = cast(Vector, streams[0].astype(np.float32, copy=False))
        levels = streams[1]
        check_scales(scales, _LEVELS)
        if len(levels) and levels.min() < -_LEVELS:
            raise PayloadError("payload holds the int8 level -128, which is never sent")
        return multiply(levels, scales, parts.segments)

    def error_bound(self, values: Vector, parts: TensorSlices) -> Bounds:
        """Return half of the tensor's scale plus float32's rounding error."""
        scales = _scales(magnitudes(values, parts.segments)).astype(np.float64)
        return np.repeat(scales * (0.5 + 2.0**-16), np.diff(parts.segments))


def _scales(largest: Vector) -> Vector:
    """Return (T,) scales such that x / scale rounds to at most 127 and 127 * scale is finite."""
    scales = largest / np.float32(_LEVELS)
    if len(scales) and (scales.min() < _TINY or scales.max() > _SAFE):
        exact = scales.astype(np.float64)
        # A subnormal quotient is rounded up, because its rounding error can be half of its value.
        low = exact * (_LEVELS + 0.5) < largest
        scales[low] = np.nextafter(scales[low], np.float32(np.inf))
        high = exact * _LEVELS > _HUGE
        scales[high] = np.nextafter(scales[high], np.float32(0))
    return scales
