"""Which coordinates compete with each other: those of the whole model, or of each tensor."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..layout import Layout
from ..selection import largest, uniform
from ..selection_by_tensor import largest_of_each
from ..stages import Indices, Vector

SCOPES = ("tensor", "global")


def count(share: float, size: int) -> int:
    """Return how many of ``size`` entries a share is: rounded down, but 1 if there are any."""
    # 0.29 * 100 is 28.999999999999996 in floating point; 29 is meant.
    return min(size, max(1, int(share * size + 1e-6))) if share > 0 else 0


@lru_cache(maxsize=64)
def counts(share: float, layout: Layout) -> NDArray[np.int64]:
    """Return `count` for each tensor, (T,): not to be changed."""
    return np.array([count(share, n) for n in np.diff(layout.offsets).tolist()], dtype=np.int64)


def largest_in(values: Vector, layout: Layout, share: float, scope: str) -> Indices:
    """Return the share of largest magnitude of (n,) values: of all, or of each tensor."""
    if scope == "global":
        return largest(values, count(share, len(values)))
    return largest_of_each(values, layout.offsets, counts(share, layout))


def random_in(layout: Layout, share: float, scope: str, generator: np.random.Generator) -> Indices:
    """Return a share drawn without replacement, all equally likely: of all, or of each tensor."""
    if scope == "global":
        return uniform(layout.size, count(share, layout.size), generator)
    sizes = np.diff(layout.offsets).tolist()
    drawn = [
        uniform(size, chosen, generator) + np.uint32(start)
        for size, chosen, start in zip(
            sizes, counts(share, layout).tolist(), layout.offsets.tolist(), strict=False
        )
    ]
    return np.concatenate([np.empty(0, dtype=np.uint32), *drawn])
