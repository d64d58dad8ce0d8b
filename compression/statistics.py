"""BatchNorm's running statistics: no gradients, so no sparsifier sees them; they travel whole."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.layout import Layout
from compression.stages import Indices, Selection, Vector

# What torch's BatchNorm layers call their buffers.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Split(NamedTuple):
    """A vector cut in runs of trained entries; what lies between them are statistics."""

    layout: Layout  # of the trained entries alone, end to end
    starts: NDArray[np.int64]  # (R,) of the runs, in the whole vector
    stops: NDArray[np.int64]  # (R,)
    shifts: NDArray[np.int64]  # (R,) position in the whole vector less that among the trained
    statistics: Indices  # positions of the statistics in the whole vector

    def gather(self, vector: Vector) -> Vector:
        """Return the trained entries: a view if they come first, as in a flat model."""
        if len(self.starts) == 1:
            return vector[self.starts[0] : self.stops[0]]
        runs = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return np.concatenate([vector[:0], *(vector[start:stop] for start, stop in runs)])

    def widen(self, selection: Selection, update: Vector) -> Selection:
        """Return a selection among the trained entries as one of the whole, with the statistics."""
        assert selection.indices is not None
        indices = self.widen_indices(selection.indices)
        # Where each statistic stands among the indices, so that the rest are the trained ones'.
        values = np.empty(len(indices), dtype=np.float32)
        whole = np.searchsorted(indices, self.statistics)
        values[whole] = update[self.statistics]
        mask = np.ones(len(indices), dtype=bool)
        mask[whole] = False
        values[mask] = selection.values
        return Selection(indices, values, selection.same)

    def widen_indices(self, indices: Indices) -> Indices:
        """Return (k,) trained indices as indices of the whole, with the statistics'."""
        runs = np.searchsorted(self.starts - self.shifts, indices, side="right") - 1
        trained = (indices + self.shifts[runs]).astype(np.uint32)
        return np.sort(np.concatenate([trained, self.statistics]))

    def narrow(self, indices: Indices, values: Vector) -> tuple[Indices, Vector]:
        """Return the trained ones of (k,) selected entries, numbered among the trained."""
        runs = np.searchsorted(self.starts, indices, side="right") - 1
        inside = (runs >= 0) & (indices < self.stops[runs])
        runs = runs[inside]
        return (indices[inside] - self.shifts[runs]).astype(np.uint32), values[inside]


@lru_cache(maxsize=64)
def split(layout: Layout) -> Split | None:
    """Return where the trained entries of a layout are; None if all are."""
    trained = [t for t, name in enumerate(layout.names) if not name.endswith(BUFFERS)]
    if len(trained) == len(layout):
        return None
    bounds = layout.offsets.tolist()
    runs: list[list[int]] = []
    for tensor in trained:
        if runs and runs[-1][1] == bounds[tensor]:
            runs[-1][1] = bounds[tensor + 1]
        else:
            runs.append([bounds[tensor], bounds[tensor + 1]])
    starts, stops = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    shifts = starts - np.cumsum([0, *(stops - starts)])[:-1]
    among = np.ones(layout.size, dtype=bool)
    for start, stop in runs:
        among[start:stop] = False
    return Split(
        Layout(
            tuple(layout.names[t] for t in trained),
            tuple(layout.shapes[t] for t in trained),
            tuple(layout.dtypes[t] for t in trained),
        ),
        starts,
        stops,
        shifts,
        np.flatnonzero(among).astype(np.uint32),
    )
