"""TernGrad: random levels -1, 0, 1 and one scale per tensor (Wen et al., NeurIPS 2017)."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from .scaling import ScaledQuantizer, magnitudes, root_mean_squares, round_by_chance

_TRITS = 5  # base-3 digits in a byte: 3^5 = 243
_AT_ONCE = 13_107  # packed bytes per block; their 65,535 levels fit into the cache


@register("quantizer")
@dataclass(frozen=True)
class Ternary(ScaledQuantizer):
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
    dtype: ClassVar[np.dtype[Any]] = np.dtype("i1")

    clip: float = bounded(2.5, at_least=0)

    def round(self, scaled: Vector, step: StepContext, draws: Vector) -> None:
        """Round at random to -1, 0 or 1, in place; this also clips."""
        round_by_chance(scaled, 1, step.generator, draws)

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Divide values by their tensor's scale, round at random, and pack five levels per byte."""
        scales, levels = super().encode(values, parts, step)
        return scales, _pack(levels)

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per tensor, one byte for five values."""
        scales, levels = super().specs(parts)
        packed = Spec(Kind.LEVELS, np.dtype("u1"), -(-levels.size // _TRITS), 3**_TRITS)
        return scales, packed

    def checked(self, levels: NDArray[Any], parts: TensorSlices) -> NDArray[Any]:
        """Unpack the levels; raise PayloadError for bytes above 242, and for padding except 0."""
        return _unpack(levels, int(parts.segments[-1]))

    def scales(self, values: Vector, parts: TensorSlices) -> Vector:
        """Return (T,) scales, max |x| of each tensor after clipping."""
        segments = parts.segments
        largest = magnitudes(values, segments)
        if not self.clip:
            return largest
        deviations = root_mean_squares(values, segments, largest)
        scales: Vector = np.minimum(largest, self.clip * deviations).astype(np.float32)
        return scales


def _pack(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack (m,) levels in {-1, 0, 1}, five per byte; return (m / 5 rounded up,) uint8 below 243.

    A byte is the sum of (level_j + 1) 3^j over its five levels j. Levels 0 pad the last byte.
    """
    packed = np.empty(-(-len(levels) // _TRITS), dtype=np.uint8)
    for start in range(0, len(packed), _AT_ONCE):
        here = packed[start : start + _AT_ONCE]
        part = levels[start * _TRITS : (start + len(here)) * _TRITS]
        if len(part) < _TRITS * len(here):
            part = np.append(part, np.zeros(_TRITS * len(here) - len(part), dtype=np.int8))
        digits = part.view(np.uint8).reshape(-1, _TRITS)
        here[:] = digits[:, _TRITS - 1]
        for place in range(_TRITS - 2, -1, -1):
            here *= 3
            here += digits[:, place]
        # A level of -1 is 255 as uint8, and all sums are modulo 256. 121 = 1 + 3 + 9 + 27 + 81 adds
        # the 1 of each (level + 1).
        here += 121
    return packed


def _unpack(packed: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """Return the first (count,) int8 levels in bytes that `_pack` made.

    Raises PayloadError for bytes that `_pack` never makes.
    """
    if len(packed) and packed.max() >= 3**_TRITS:
        raise PayloadError("payload holds a byte that is not five base-3 digits")
    table = _trits()
    levels = np.empty((len(packed), _TRITS), dtype=np.int8)
    for start in range(0, len(packed), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        np.take(table, packed[part], axis=0, out=levels[part], mode="clip")
    found = levels.reshape(-1)
    if found[count:].any():
        raise PayloadError("payload holds padding that is not 0")
    return found[:count]


@cache
def _trits() -> NDArray[np.int8]:
    """Return the five levels of each of the 243 possible bytes, (243, 5) int8."""
    digits = np.arange(3**_TRITS)[:, None] // 3 ** np.arange(_TRITS) % 3
    return (digits - 1).astype(np.int8)
