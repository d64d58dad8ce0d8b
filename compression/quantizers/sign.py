"""1-bit SGD: sends the sign of each value, and two means (Seide et al., Interspeech 2014).

The two means are those of the negative and of the other values of a tensor or column.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from .scaling import BLOCK, F4, U1, check_padding

_HUGE = np.finfo(np.float32).max
_NARROW = 64  # the fewest values of a column; their bits take 8 bytes, as two float32 means do


@register("quantizer")
@dataclass(frozen=True)
class Sign(Quantizer):
    """Sends one bit per value: a value is decoded as the mean of all values with the same sign.

    0 counts as positive. This is 1-bit SGD with the threshold 0. The means minimise the squared
    error. The method converges only with error feedback.

    ``means="column"`` sends two means for each column of a weight matrix, as in the paper. The
    paper's layers are W^T x + a, so a column belongs to one output unit. In PyTorch a column is one
    index of the first dimension of (out, in, ...). A tensor still has only two means if it has
    fewer than two dimensions, if it has fewer than 64 values per column, or if only some of its
    values are sent. ``means="tensor"`` sends two means for each tensor.

    Streams: float32 means, first all means of negative values; signs, eight per byte.
    """

    name: ClassVar[str] = "sign"
    id: ClassVar[int] = 7
    feedback: ClassVar[bool] = True
    sent_options: ClassVar[int] = 1

    means: str = bounded("tensor", one_of=("tensor", "column"))

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Return the two means of each group (a tensor or a column), and the signs of the values.

        The values are processed in pieces that fit into the cache.
        """
        signs = np.empty(len(values), dtype=np.bool_)
        sums, counts = self._sides(values, parts, signs, np.float32)
        if not np.isfinite(sums).all():
            sums, counts = self._sides(values, parts, signs, np.float64)
        means = (sums / np.maximum(counts, 1)).astype(F4)
        return means.reshape(-1), np.packbits(signs, bitorder="little")

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: two means per group, one byte for eight values."""
        means = Spec(Kind.FLOATS, F4, 2 * sum(_groups(parts, self.means)))
        return means, Spec(Kind.LEVELS, U1, -(-int(parts.segments[-1]) // 8), 256)

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Replace each sign by the mean of the values with this sign, in the same tensor or column.

        Raises PayloadError for means that are not finite or have the wrong sign, and for padding
        other than 0.
        """
        low, high = streams[0].astype(np.float32, copy=False).reshape(2, -1)
        if not np.isfinite(streams[0]).all() or (low > 0).any() or (high < 0).any():
            raise PayloadError("payload holds a mean that is not finite or has the wrong sign")
        packed, count = streams[1], int(parts.segments[-1])
        check_padding(packed, count, 1)
        signs = np.unpackbits(packed, count=count, bitorder="little")
        values = np.empty(count, dtype=np.float32)
        zeros, change = low.view(np.uint32), low.view(np.uint32) ^ high.view(np.uint32)
        for piece in _pieces(parts, self.means):
            bits = values[piece.here].view(np.uint32).reshape(piece.shape)
            np.copyto(bits, signs[piece.here].reshape(piece.shape))
            bits *= change[piece.groups, None]
            bits ^= zeros[piece.groups, None]  # the bits of the mean: `high` where the sign is 1
        return values

    def _sides(
        self,
        values: Vector,
        parts: TensorSlices,
        signs: NDArray[np.bool_],
        dtype: type[np.floating[Any]],
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the sum and count of negative values in each group, and of the other values.

        Both results have the shape (2, G), negative values first. ``signs`` is set to True for
        values that are not negative. ``dtype``: of sums of up to BLOCK values.
        """
        sums = np.zeros((2, sum(_groups(parts, self.means))))
        counts = np.zeros(sums.shape, dtype=np.int64)
        work = np.empty(min(BLOCK, len(values)), dtype=np.float32)
        for here, which, shape in _pieces(parts, self.means):
            rows = values[here].reshape(shape)
            positive = np.greater_equal(rows, 0, out=signs[here].reshape(shape))
            side = np.clip(rows, 0, _HUGE, out=work[: rows.size].reshape(shape))
            sums[1, which] += np.add.reduce(side, axis=1, dtype=dtype)
            np.subtract(rows, side, out=side)
            sums[0, which] += np.add.reduce(side, axis=1, dtype=dtype)
            # For a single row, a count without an axis is ten times as fast.
            counts[1, which] += np.count_nonzero(positive, axis=1 if len(rows) > 1 else None)
            counts[0, which] += shape[1]
        counts[0] -= counts[1]
        return sums, counts


class _Piece(NamedTuple):
    """Up to BLOCK values in rows of equal length; each row is one group or a part of one group."""

    here: slice  # the values' slice of the vector
    groups: slice  # the numbers of the rows' groups
    shape: tuple[int, int]  # rows, values per row


def _pieces(parts: TensorSlices, means: str) -> Iterator[_Piece]:
    """Cut the values of each tensor, group by group, into pieces that fit into the cache."""
    first = 0
    for groups, (start, stop) in zip(
        _groups(parts, means), pairwise(parts.segments.tolist()), strict=True
    ):
        width = (stop - start) // groups
        step = max(1, BLOCK // max(width, 1))
        for group in range(0, groups, step):
            rows = min(step, groups - group)
            which = slice(first + group, first + group + rows)
            for left in range(start + group * width, start + (group + 1) * width, BLOCK):
                # A group longer than BLOCK is yielded alone, in parts.
                length = min(BLOCK, start + (group + 1) * width - left)
                yield _Piece(slice(left, left + rows * length), which, (rows, length))
        first += groups


def _groups(parts: TensorSlices, means: str) -> list[int]:
    """Return the number of groups of each tensor: one, or one per index of its first dimension."""
    sizes = np.diff(parts.segments).tolist()
    if parts.shapes is None or means == "tensor":
        return [1] * len(sizes)
    return [
        shape[0] if len(shape) > 1 and size >= _NARROW * max(shape[0], 1) else 1
        for size, shape in zip(sizes, parts.shapes, strict=True)
    ]
