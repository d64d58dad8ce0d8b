"""Divides values into groups: a group is a whole tensor, or one column of a weight matrix."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base import TensorSlices
from .scaling import BLOCK

NARROW = 64  # the fewest values of a column; their bits take 8 bytes, as two float32 means do


class Column(NamedTuple):
    """Up to BLOCK values in rows of equal length; each row is one group or a part of one group.

    A group is a whole tensor, or one column of a weight matrix.
    """

    here: slice  # the values' slice of the vector
    groups: slice  # the numbers of the rows' groups
    shape: tuple[int, int]  # rows, values per row


def count(parts: TensorSlices, columns: bool) -> int:
    """Return the number of groups of all tensors."""
    return sum(_groups(parts, columns))


def pieces(parts: TensorSlices, columns: bool) -> Iterator[Column]:
    """Cut the values of each tensor, group by group, into pieces that fit into the cache."""
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
                # A group longer than BLOCK is yielded alone, in parts.
                length = min(BLOCK, start + (group + 1) * width - left)
                yield Column(slice(left, left + rows * length), which, (rows, length))
        first += groups


def _groups(parts: TensorSlices, columns: bool) -> list[int]:
    """Return the number of groups of each tensor: one, or one per index of its first dimension.

    A tensor has several groups if all of the following are true: ``columns`` is True, the tensor
    has two or more dimensions, all its entries are sent, and a group has NARROW or more values.
    """
    sizes = np.diff(parts.segments).tolist()
    if parts.shapes is None or not columns:
        return [1] * len(sizes)
    return [
        shape[0] if len(shape) > 1 and size >= NARROW * max(shape[0], 1) else 1
        for size, shape in zip(sizes, parts.shapes, strict=True)
    ]
