"""int4: four bits per value, and one scale for each block of values."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from . import buckets
from .scaling import U1, check_padding, widen

_U2 = np.dtype("<u2")
_LEVELS = 7
# The bits of the largest bfloat16 that is finite when multiplied by 7.
_LARGEST = int((np.finfo(np.float32).max / np.float32(_LEVELS)).view(np.uint32)) >> 16


@register("quantizer")
@dataclass(frozen=True)
class Int4(Quantizer):
    """Sends rint(x / scale) in [-7, 7], with one scale for ``block`` consecutive values.

    A block may hold values of several tensors. scale = max |x| / 7 of the block, rounded up to a
    bfloat16. A bfloat16 has half the size of a float32 and the same range. The rounded scale is at
    most 1/128 larger, and the product of a level and a scale is exact. Error: at most scale / 2,
    plus float32's rounding.
    Streams: the upper 16 bits of each block's scale as uint16; the levels in two's complement, two
    per byte, the first in the lower nibble.
    """

    name: ClassVar[str] = "int4"
    id: ClassVar[int] = 4
    sent_options: ClassVar[int] = 1

    block: int = bounded(64, at_least=buckets.SMALLEST, at_most=buckets.LARGEST)

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Divide values by their block's scale, round half to even, and pack two levels per byte.

        The values are processed in groups of blocks that fit into the cache.
        """
        bits = (buckets.magnitudes(values, self.block) / np.float32(_LEVELS)).view(np.uint32)
        # Scales are rounded up, unless 7 times the scale would overflow.
        halves = np.minimum((bits + 0xFFFF) >> 16, _LARGEST).astype(_U2)
        scales = widen(halves)
        packed = np.empty(-(-len(values) // 2), dtype=U1)
        work = buckets.temporary(len(values), self.block)
        levels = np.zeros(len(work) + 1, dtype=np.int8)
        for here, which in buckets.chunks(len(values), self.block):
            scaled = buckets.divide(values[here], scales[which], self.block, work)
            np.rint(scaled, out=scaled)
            np.copyto(levels[: len(scaled)], scaled, casting="unsafe")
            levels[len(scaled)] = 0  # padding of the last byte
            part = packed[here.start // 2 : -(-here.stop // 2)]
            part[:] = _pack(levels[: 2 * len(part)])
        return halves, packed

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per block, one byte for two values."""
        scales = Spec(Kind.FLOATS, _U2, buckets.count(parts, self.block))
        return scales, Spec(Kind.LEVELS, U1, -(-int(parts.segments[-1]) // 2), 256)

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Multiply each level by its block's scale.

        Raises PayloadError for the level -8, for padding other than 0, for negative scales, and for
        scales that are infinite when multiplied by 7.
        """
        halves, packed = streams
        values = np.empty(int(parts.segments[-1]), dtype=np.float32)
        if len(halves) and halves.max() > _LARGEST:
            raise PayloadError("payload holds a scale that is negative or not finite")
        check_padding(packed, len(values), 4)
        scales = widen(halves)
        for here, which in buckets.chunks(len(values), self.block):
            levels = _unpack(packed[here.start // 2 : -(-here.stop // 2)])
            if levels.min() < -_LEVELS:
                raise PayloadError("payload holds the int4 level -8, which is never sent")
            part = values[here]
            buckets.multiply(levels[: len(part)], scales[which], self.block, part)
        return values


def _pack(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack (m,) int8 levels in [-8, 7] in two's complement, two per byte; m is even."""
    pairs = levels.view("<u2") & 0x0F0F
    pairs |= pairs >> 4
    return pairs.astype(np.uint8)


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return the (2m,) int8 levels in (m,) bytes that `_pack` made."""
    pairs = packed.astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    levels = pairs.view(np.int8)
    levels ^= 8  # 8 to 15 represent -8 to -1
    levels -= 8
    return levels
