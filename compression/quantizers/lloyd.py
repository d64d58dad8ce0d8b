"""Lloyd: sends the sign of each value, and one of a few magnitudes that fit the values best.

Lloyd 1982, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28(2).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ..base import Kind, PayloadError, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from .scaling import BLOCK, F4, U1, check_padding

_BINS = 1 << 15  # the upper 16 bits of a magnitude; the highest of them, the sign, is 0
_ROUNDS = 200  # of Lloyd's method at most; it mostly ends after twenty
_SIGN = np.uint32(1 << 31)


@register("quantizer")
@dataclass(frozen=True)
class Lloyd(Quantizer):
    """Sends the sign of each value, and which of ``magnitudes`` sizes is nearest to its own.

    The sizes belong to the whole payload, not to a tensor. They are those of Lloyd's method I: each
    is the mean of the magnitudes that it stands for, and each magnitude has the nearest size. The
    method runs on a histogram of the magnitudes, whose bins are the values of a bfloat16. The sizes
    are then the exact means of the values. With one size, which is the mean magnitude, and a
    top-k sparsifier this is the ternary compression of Sattler et al. 2019, "Robust and
    communication-efficient federated learning from non-i.i.d. data", Algorithm 1.

    A value takes 1 bit with 1 size, 2 bits with 2, 3 bits with 4 and 4 bits with 8 sizes. The
    method converges only with error feedback.

    Streams: float32 sizes, not decreasing; the signs, eight per byte (1 is negative); for each bit
    of a size's number, from the lowest, this bit of all values, eight per byte.
    """

    name: ClassVar[str] = "lloyd"
    id: ClassVar[int] = 10
    feedback: ClassVar[bool] = True
    sent_options: ClassVar[int] = 1

    magnitudes: int = bounded(1, one_of=(1, 2, 4, 8))

    def finer(self, bits: int) -> Self:
        """Return this method with 2^``bits`` times as many sizes, at most 8."""
        return replace(self, magnitudes=min(self.magnitudes << min(bits, 3), 8))

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Return the sizes, the signs, and the bits of each value's number of a size.

        The values are processed in blocks that fit into the cache.
        """
        bounds = _bounds(values, self.magnitudes)
        signs = np.empty(-(-len(values) // 8), dtype=U1)
        planes = [np.empty_like(signs) for _ in range(_planes(self.magnitudes))]
        counts, sums = np.zeros((2, self.magnitudes))
        for here in _blocks(len(values)):
            packed = slice(here.start // 8, -(-here.stop // 8))
            signs[packed] = np.packbits(np.signbit(values[here]), bitorder="little")
            sizes = np.abs(values[here])
            numbers = np.zeros(len(sizes), dtype=np.uint8)
            for bound in bounds:
                numbers += sizes > bound
            for number in range(self.magnitudes):
                mine = numbers == number
                counts[number] += np.count_nonzero(mine)
                sums[number] += (sizes * mine).sum(dtype=float)
            for bit, plane in enumerate(planes):
                plane[packed] = np.packbits(numbers >> bit & 1, bitorder="little")
        means = sums / np.maximum(counts, 1)
        # A size that stands for no value repeats the one before it.
        sizes = np.maximum.accumulate(means).astype(F4)
        return sizes, signs, *planes

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: the sizes, and one byte for eight bits."""
        bits = Spec(Kind.LEVELS, U1, -(-int(parts.segments[-1]) // 8), 256)
        return Spec(Kind.FLOATS, F4, self.magnitudes), *[bits] * (1 + _planes(self.magnitudes))

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Return the size of each value with its sign.

        Raises PayloadError for sizes that are negative, decreasing or not finite, and for padding
        other than 0.
        """
        sizes = streams[0].astype(np.float32, copy=False)
        if not np.isfinite(sizes).all() or np.signbit(sizes).any() or (np.diff(sizes) < 0).any():
            raise PayloadError("payload holds sizes that are negative, decreasing or not finite")
        signs, *planes = streams[1:]
        count = int(parts.segments[-1])
        for packed in (signs, *planes):
            check_padding(packed, count, 1)
        values = np.empty(count, dtype=np.float32)
        for here in _blocks(count):
            bytes_ = slice(here.start // 8, -(-here.stop // 8))
            size = here.stop - here.start
            numbers = np.zeros(size, dtype=np.uint8)
            for bit, plane in enumerate(planes):
                numbers |= np.unpackbits(plane[bytes_], count=size, bitorder="little") << bit
            np.take(sizes, numbers, out=values[here], mode="clip")
            negative = np.unpackbits(signs[bytes_], count=size, bitorder="little")
            values[here].view(np.uint32)[:] ^= negative * _SIGN
        return values


def _planes(magnitudes: int) -> int:
    """Return the bits of a size's number."""
    return (magnitudes - 1).bit_length()


def _blocks(count: int) -> Iterator[slice]:
    """Yield slices of BLOCK values, whose bits fill whole bytes except at the end."""
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))


def _bounds(values: Vector, magnitudes: int) -> Vector:
    """Return the (magnitudes - 1,) float32 bounds between the sizes, increasing."""
    if magnitudes == 1 or not len(values):
        return np.empty(0, dtype=np.float32)
    counts, sums = np.zeros((2, _BINS))
    for here in _blocks(len(values)):
        sizes = np.abs(values[here])
        bins = (sizes.view(np.uint32) >> 16).astype(np.intp)
        counts += np.bincount(bins, minlength=_BINS)
        sums += np.bincount(bins, sizes, minlength=_BINS)
    used = np.flatnonzero(counts)
    means = sums[used] / counts[used]
    before = np.concatenate([[0.0], np.cumsum(counts[used])])
    total = np.concatenate([[0.0], np.cumsum(sums[used])])
    # It begins with sizes that stand for equally many values.
    shares = np.arange(1, magnitudes) / magnitudes
    inner = np.searchsorted(before[1:], shares * before[-1], side="left") + 1
    cuts = np.concatenate([[0], np.minimum(inner, len(used)), [len(used)]])
    for _ in range(_ROUNDS):
        held = np.diff(before[cuts])
        centres = np.diff(total[cuts]) / np.maximum(held, 1)
        centres = np.maximum.accumulate(np.where(held > 0, centres, 0))
        middles = (centres[:-1] + centres[1:]) / 2
        found = np.concatenate([[0], np.searchsorted(means, middles, side="right"), [len(used)]])
        if (found == cuts).all():
            break
        cuts = found
    return middles.astype(np.float32)
