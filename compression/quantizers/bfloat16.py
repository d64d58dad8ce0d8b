"""bfloat16: the upper 16 bits of a float32, with its range and two to three decimal digits."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from .scaling import BLOCK, widen

_U2 = np.dtype("<u2")
# The bits of the largest finite bfloat16, 3.39e38; larger magnitudes have larger bits.
_LARGEST = 0x7F7F


@register("quantizer")
@dataclass(frozen=True)
class BFloat16(Quantizer):
    """Sends the upper 16 bits of each float32, rounded to nearest, ties to even.

    Values are never rounded to infinity. No scales are needed, because bfloat16 has the exponent of
    float32. Error: at most |x| 2^-8, and 2^-134 for subnormal numbers.
    Stream: k uint16, the bits.
    """

    name: ClassVar[str] = "bfloat16"
    id: ClassVar[int] = 3
    keeps_norm: ClassVar[bool] = True

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Round the values and return their upper 16 bits.

        A value that rounds to infinity becomes the largest finite number instead.
        """
        halves = np.empty(len(values), dtype=_U2)
        bits = values.view(np.uint32)
        work = np.empty(min(BLOCK, len(values)), dtype=np.uint32)
        for start in range(0, len(values), BLOCK):
            given, found = bits[start : start + BLOCK], halves[start : start + BLOCK]
            rounded = np.right_shift(given, 16, out=work[: len(given)])
            rounded &= 1
            # Add 0x7FFF plus the lowest bit that remains after the shift: ties are rounded to even.
            rounded += 0x7FFF
            rounded += given
            rounded >>= 16
            np.copyto(found, rounded, casting="unsafe")
            if _largest(found) > _LARGEST:
                found[found & 0x7FFF > _LARGEST] -= 1
        return (halves,)

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of the only stream: 16 bits per value."""
        return (Spec(Kind.FLOATS, _U2, int(parts.segments[-1])),)

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Return float32 with these upper 16 bits; raises PayloadError for NaN and infinity."""
        halves = streams[0]
        values = np.empty(len(halves), dtype=np.float32)
        for start in range(0, len(halves), BLOCK):
            here = halves[start : start + BLOCK]
            if _largest(here) > _LARGEST:
                raise PayloadError("payload holds NaN or infinity")
            widen(here, out=values[start : start + BLOCK])
        return values


def _largest(halves: NDArray[Any]) -> int:
    """Return the largest of (m,) uint16 with the sign bits cleared, m > 0."""
    return int((halves & 0x7FFF).max())
