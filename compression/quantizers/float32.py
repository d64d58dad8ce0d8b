"""float32: sends the values unchanged."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Kind, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector, expect_finite
from ..registry import register
from .scaling import F4


@register("quantizer")
@dataclass(frozen=True)
class Float32(Quantizer):
    """Sends values in IEEE 754 single precision, without loss. Stream: k float32."""

    name: ClassVar[str] = "float32"
    id: ClassVar[int] = 0
    keeps_norm: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Return the values as the only stream, unchanged."""
        return (values.astype(F4, copy=False),)

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of the only stream: one float32 per value."""
        return (Spec(Kind.FLOATS, F4, int(parts.segments[-1])),)

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Return the only stream, the values; raises PayloadError for NaN or infinity."""
        values: Vector = streams[0].astype(np.float32, copy=False)
        expect_finite(values)
        return values
