"""Describes the layout of a model's tensors in one flat float32 vector."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

if __name__.partition(".")[0] == "compression":  # only the path knows this folder
    raise ImportError("compression is called edgewire.compression now", name=__name__)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of tensors that are concatenated in one flat float32 vector.

    ``dtypes``: the names of the tensors' dtypes in the model ("float32", "int64", ...). In the
    vector every entry is float32. A 0-d tensor has one entry. Tensors of size zero are allowed, and
    so is a layout without tensors.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.shapes) == len(self.dtypes):
            raise ValueError(
                f"a layout needs as many names ({len(self.names)}) as shapes "
                f"({len(self.shapes)}) and dtypes ({len(self.dtypes)})"
            )
        for name, shape in zip(self.names, self.shapes, strict=True):
            if any(d < 0 for d in shape):
                raise ValueError(f"tensor {name} has a negative dimension: {tuple(shape)}")

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(T+1,) int64, read-only: tensor t has the entries ``offsets[t]:offsets[t + 1]``."""
        sizes = [0, *(math.prod(shape) for shape in self.shapes)]
        offsets = np.cumsum(np.array(sizes, dtype=np.int64))
        offsets.flags.writeable = False
        return offsets

    @cached_property
    def size(self) -> int:
        """Number of float32 entries in the vector."""
        return int(self.offsets[-1])

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.names)

    def __bool__(self) -> bool:
        """Return True; without this method a layout without tensors would be false."""
        return True

    def without(self, tensors: Collection[int]) -> "Layout":
        """Return a layout without the tensors at these positions; this object if there are none."""
        return self if not tensors else _without(self, frozenset(tensors))

    @cached_property
    def _hash(self) -> int:
        return hash((self.names, self.shapes, self.dtypes))

    def __hash__(self) -> int:
        # Layouts are keys of caches that are read in every step. Hashing 122 names each time would
        # be slow.
        return self._hash

    def __reduce__(self) -> tuple[type["Layout"], tuple[object, ...]]:
        # The cached values are left out, because another process hashes strings differently.
        return Layout, (self.names, self.shapes, self.dtypes)


@lru_cache(maxsize=64)
def _without(layout: Layout, tensors: frozenset[int]) -> Layout:
    left = [t for t in range(len(layout)) if t not in tensors]
    return Layout(
        tuple(layout.names[t] for t in left),
        tuple(layout.shapes[t] for t in left),
        tuple(layout.dtypes[t] for t in left),
    )
