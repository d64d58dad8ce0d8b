"""Groups of values, one or several a tensor: as wide as a tensor or as a column of weights."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base import TensorSlices
from .scaling import BLOCK

NARROW = 64  # values: 8 bytes of one bit each, as much as two float32


class Column(NamedTuple):
    """Up to BLOCK values: rows of equal length, each of one group."""

    here: slice  # in the vector
    groups: slice
    shape: tuple[int, int]


def count(parts: TensorSlices, columns: bool) -> int:
    """Return the number of groups of all tensors."""
    return sum(_groups(parts, columns))


def pieces(parts: TensorSlices, columns: bool) -> Iterator[Column]:
    """Cut the values of each tensor, group by group, into pieces that stay in cache."""
    first = 0
    for groups, (start, stop) in zip(
        _groups(parts, columns), pairwise(parts.segments.tolist()), strict=True
    ):
        width = (stop - start) // groups
        step = max(1, BLOCK // max(width, 1))
        for group in range(0, groups, step):
            rows = min(step, groups - group)
            which = slice(first + group, first + group + rows)
            for left in range(start + group * width, start + (group + 1) * width, BLOCK):
                # A group longer than BLOCK comes alone and in parts.
                length = min(BLOCK, start + (group + 1) * width - left)
                yield Column(slice(left, left + rows * length), which, (rows, length))
        first += groups


def _groups(parts: TensorSlices, columns: bool) -> list[int]:
    """Return the number of groups of each tensor: one, or one an index of its first dimension.

    The latter with ``columns``, for tensors of two or more dimensions that are there as a whole
    and have NARROW or more values in each group.
    """
    sizes = np.diff(parts.segments).tolist()
    if parts.shapes is None or not columns:
        return [1] * len(sizes)
    return [
        shape[0] if len(shape) > 1 and size >= NARROW * max(shape[0], 1) else 1
        for size, shape in zip(sizes, parts.shapes, strict=True)
    ]
