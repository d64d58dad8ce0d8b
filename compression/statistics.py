"""BatchNorm's running statistics: no gradients, and a variance must not become negative.

So no sparsifier and no quantizer sees them; they travel beside the trained entries, exactly.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from compression.layout import Layout
from compression.stages import Indices, Vector

# What torch's BatchNorm layers call their buffers.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
Run = tuple[int, int]  # from, to


class Split(NamedTuple):
    """A vector cut in two: some tensors (the exact ones), and the rest (the trained ones)."""

    exact: tuple[int, ...]  # which tensors, in order
    layout: Layout  # of the trained tensors alone, end to end
    trained_runs: tuple[Run, ...]  # of entries, in the whole vector
    exact_runs: tuple[Run, ...]
    exact_size: int

    def gather(self, vector: Vector) -> Vector:
        """Return the trained entries: a view if they come first, as in a flat model."""
        return _gather(vector, self.trained_runs)

    def gather_exact(self, vector: Vector) -> Vector:
        """Return the exact entries."""
        return _gather(vector, self.exact_runs)

    def merge(self, trained: Vector, exact: Vector) -> Vector:
        """Return the whole vector."""
        whole = np.empty(len(trained) + len(exact), dtype=trained.dtype)
        for runs, values in ((self.trained_runs, trained), (self.exact_runs, exact)):
            done = 0
            for start, stop in runs:
                whole[start:stop] = values[done : done + stop - start]
                done += stop - start
        return whole

    def widen(self, indices: Indices, values: Vector, exact: Vector) -> tuple[Indices, Vector]:
        """Return (k,) selected trained entries, with the exact ones, as entries of the whole."""
        runs = np.array(self.trained_runs, dtype=np.int64).reshape(-1, 2)
        firsts = np.cumsum(runs[:, 1] - runs[:, 0]) - (runs[:, 1] - runs[:, 0])
        shifts = runs[:, 0] - firsts  # position in the whole less that among the trained
        places = np.concatenate([np.empty(0, np.int64), *(np.arange(*r) for r in self.exact_runs)])
        if len(indices):
            trained = indices + shifts[np.searchsorted(firsts, indices, side="right") - 1]
            places = np.concatenate([trained, places])
            exact = np.concatenate([values, exact])
        order = np.argsort(places, kind="stable")  # two sorted parts: merged in one pass
        return places[order].astype(np.uint32), exact[order]

    def narrow(self, indices: Indices, values: Vector) -> tuple[Indices, Vector, Vector]:
        """Undo `widen`: selected trained indices and values, and the exact entries (absent: 0)."""
        exact = np.zeros(self.exact_size, dtype=np.float32)
        shifts = np.zeros(len(indices), dtype=np.uint32)
        trained, done = np.ones(len(indices), dtype=np.bool_), 0
        for start, stop in self.exact_runs:
            low, high = np.searchsorted(indices, (start, stop))
            exact[done + indices[low:high].astype(np.int64) - start] = values[low:high]
            trained[low:high] = False
            shifts[high:] += stop - start
            done += stop - start
        return (indices - shifts)[trained], values[trained], exact


def exact_tensors(layout: Layout) -> tuple[int, ...]:
    """Return which tensors of a layout are running statistics, by their names."""
    return tuple(t for t, name in enumerate(layout.names) if name.endswith(BUFFERS))


@lru_cache(maxsize=64)
def split(layout: Layout, exact: tuple[int, ...]) -> Split:
    """Cut a layout at the tensors ``exact``, increasing numbers below len(layout)."""
    chosen = set(exact)
    trained = [t for t in range(len(layout)) if t not in chosen]
    return Split(
        exact,
        Layout(
            tuple(layout.names[t] for t in trained),
            tuple(layout.shapes[t] for t in trained),
            tuple(layout.dtypes[t] for t in trained),
        ),
        _runs(layout, trained),
        exact_runs := _runs(layout, list(exact)),
        sum(stop - start for start, stop in exact_runs),
    )


def _runs(layout: Layout, tensors: list[int]) -> tuple[Run, ...]:
    bounds = layout.offsets.tolist()
    runs: list[Run] = []
    for tensor in tensors:
        start = bounds[tensor]
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, bounds[tensor + 1]))
    return tuple(runs)


def _gather(vector: Vector, runs: tuple[Run, ...]) -> Vector:
    if len(runs) == 1:
        return vector[slice(*runs[0])]
    return np.concatenate([vector[:0], *(vector[start:stop] for start, stop in runs)])
