"""F2I: converts float32 to symmetric int8 with one scale per tensor.

Source: Edgify's paper on large-batch training on edge devices.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import PayloadError, StepContext, TensorSlices, Vector
from ..registry import register
from .buckets import steps
from .scaling import ScaledQuantizer, magnitudes

_LEVELS = 127


@register("quantizer")
@dataclass(frozen=True)
class Int8(ScaledQuantizer):
    """Sends rint(x / scale), where scale = max |x| / 127 of the tensor; if all x are 0, it sends 0.

    Error: at most scale / 2, plus float32's rounding.
    Streams: T float32 scales, k int8 in [-127, 127].
    """

    name: ClassVar[str] = "int8"
    id: ClassVar[int] = 2
    keeps_norm: ClassVar[bool] = True

    dtype: ClassVar[np.dtype[Any]] = np.dtype("i1")
    top: ClassVar[int] = _LEVELS

    def scales(self, values: Vector, parts: TensorSlices) -> Vector:
        """Return (T,) scales: x / scale rounds to at most 127, and 127 * scale is finite."""
        return steps(magnitudes(values, parts.segments), _LEVELS)

    def round(self, scaled: Vector, step: StepContext, draws: Vector) -> None:
        """Round half to even, in place."""
        np.rint(scaled, out=scaled)

    def checked(self, levels: NDArray[Any], parts: TensorSlices) -> NDArray[Any]:
        """Return the levels; raise PayloadError for the level -128."""
        if len(levels) and levels.min() < -_LEVELS:
            raise PayloadError("payload holds the int8 level -128, which is never sent")
        return levels
