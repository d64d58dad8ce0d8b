"""Separates BatchNorm's running statistics, which are sent exactly, from the trained entries.

Running statistics are not gradients, and a running variance must not become negative. So they skip
the sparsifier and the quantizer. They are sent as values, not as changes. A change that is stale,
or that an optimiser has scaled, could make a variance negative. Tensors with a name that matches
one of a codec's ``exact`` patterns are sent in the same way. Below, all tensors that are sent in
this way are called exact, and all others are called trained.
"""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import PayloadError
from .layout import Layout
from .scatter import Indices, Vector, count_up, find, put_at
from .wire_natives import NativeTensor

# The names of the buffers in PyTorch's BatchNorm layers.
MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"
BUFFERS = (MEAN, VARIANCE, COUNT)
EPSILON = 1e-5  # PyTorch's default; BatchNorm adds it to a variance
Extent = tuple[int, int]  # start, stop


class Separation(NamedTuple):
    """The division of a model's vector into exact tensors and trained tensors.

    A block is a range of consecutive entries of the same kind.
    """

    exact: tuple[int, ...]  # increasing positions of the exact tensors
    layout: Layout  # the layout of the trained tensors, without the exact ones
    trained_runs: tuple[Extent, ...]  # blocks of trained entries, in the whole vector
    exact_runs: tuple[Extent, ...]  # blocks of exact entries, in the whole vector
    exact_size: int
    borders: tuple[int, ...]  # the number of trained entries before each block of exact entries

    def gather(self, vector: Vector) -> Vector:
        """Return the trained entries of a whole vector; a view of it if they are a single block."""
        return _gather(vector, self.trained_runs)

    def gather_exact(self, vector: Vector) -> Vector:
        """Return the exact entries of a whole vector."""
        return _gather(vector, self.exact_runs)

    def merge(self, trained: Vector, exact: Vector, borders: Sequence[int] | None = None) -> Vector:
        """Return the whole vector from its trained and exact entries.

        If ``trained`` holds only selected entries, ``borders`` is as in `widen_indices`.
        """
        whole = np.empty(len(trained) + len(exact), dtype=trained.dtype)
        last = done = 0
        for (start, stop), border in zip(self.exact_runs, borders or self.borders, strict=True):
            whole[last + done : border + done] = trained[last:border]
            size = stop - start
            whole[border + done : border + done + size] = exact[done : done + size]
            last, done = border, done + size
        whole[last + done :] = trained[last:]
        return whole

    def widen_indices(self, indices: Indices, borders: Sequence[int]) -> Indices:
        """Return the indices, in the whole vector, of selected trained entries and all exact ones.

        ``indices``: (k,), strictly increasing, those of the trained entries among themselves.
        ``borders``: for each block of exact entries, how many of ``indices`` come before it.
        """
        whole = np.empty(len(indices) + self.exact_size, dtype=np.uint32)
        last = done = 0
        for (start, stop), border in zip(self.exact_runs, borders, strict=True):
            np.add(indices[last:border], done, out=whole[last + done : border + done])
            count_up(whole[border + done : border + done + stop - start], start)
            last, done = border, done + stop - start
        np.add(indices[last:], done, out=whole[last + done :])
        return whole

    def narrow(self, indices: Indices, values: Vector) -> tuple[Indices, Vector, Vector]:
        """Separate selected entries into trained and exact entries.

        ``indices``, ``values``: (k,), the indices in the whole vector, and the values there.
        Returns the indices among the trained entries, the values there, and the values of all exact
        entries; the value of an exact entry that is not selected is 0.
        """
        if not self.exact:
            return indices, values, values[:0]
        exact, done = np.zeros(self.exact_size, dtype=np.float32), 0
        for start, stop, low, high in self._met(indices):
            here = exact[done : done + stop - start]
            put_at(here, indices[low:high] - np.uint32(start), values[low:high])
            done += stop - start
        pieces = [values[piece] for piece, _ in self._trained_pieces(indices)]
        return self.narrow_indices(indices), np.concatenate(pieces), exact

    def narrow_indices(self, indices: Indices) -> Indices:
        """Return the indices of the trained entries that `narrow` returns, without the values."""
        pieces = self._trained_pieces(indices)
        return np.concatenate([indices[piece] - np.uint32(shift) for piece, shift in pieces])

    def _trained_pieces(self, indices: Indices) -> Iterator[tuple[slice, int]]:
        """Yield the slices of ``indices`` that belong to trained entries.

        Each comes with the number of exact entries before it in the whole vector.
        """
        last = done = 0
        for start, stop, low, high in self._met(indices):
            yield slice(last, low), done
            last, done = high, done + stop - start
        yield slice(last, len(indices)), done

    def _met(self, indices: Indices) -> list[tuple[int, int, int, int]]:
        """Return start and stop of each block of exact entries, and those of the indices in it."""
        starts, stops = ([run[end] for run in self.exact_runs] for end in (0, 1))
        return list(zip(starts, stops, find(indices, starts), find(indices, stops), strict=True))


class Scale:
    """Measures the distance between two sets of statistics by the effect on the layers' outputs.

    BatchNorm's output is (x - mean) / sqrt(variance + epsilon). The distance of two means is the
    shift of the outputs, in standard deviations. The distance of two variances is the logarithm of
    their ratio. The distance of two tensors is the root mean square over the channels. The distance
    of two sets is the largest distance of their tensors. Counters are ignored.
    `layout`: the layout of the statistics alone, float32 (s,).
    """

    def __init__(self, layout: Layout) -> None:
        bounds, place = layout.offsets.tolist(), {n: t for t, n in enumerate(layout.names)}
        means, variances, nothing = [], [], np.empty(0, np.intp)
        for name, t in place.items():
            entries = np.arange(bounds[t], bounds[t + 1])
            if own_name(name) not in (MEAN, VARIANCE) or not len(entries):
                continue
            if own_name(name) == VARIANCE:
                variances.append(entries)
                continue
            beside = place.get(name.removesuffix(MEAN) + VARIANCE)
            if beside is None or layout.shapes[beside] != layout.shapes[t]:
                means.append((entries, np.full(len(entries), layout.size)))
            else:
                means.append((entries, entries - bounds[t] + bounds[beside]))
        self._means = np.concatenate([nothing, *(entries for entries, _ in means)])
        self._of = np.concatenate([nothing, *(entries for _, entries in means)])
        self._variances = np.concatenate([nothing, *variances])
        sizes = [len(e) for e, _ in means] + [len(e) for e in variances]
        self._starts = np.array([0, *accumulate(sizes)][:-1], dtype=np.intp)
        self._sizes = np.array(sizes)

    def distance(self, one: Vector, other: Vector, around: Vector) -> float:
        """Return the distance of two (s,) statistics, in the standard deviations of ``around``."""
        if not len(self._sizes):
            return 0.0
        # If a layer's tensor of variances is missing, the variance is 1, the last entry.
        wide = np.append(around.astype(np.float64), 1.0)
        shift = one[self._means].astype(np.float64) - other[self._means]
        shift /= np.sqrt(np.maximum(wide[self._of], 0) + EPSILON)
        ratio = self._spread(one) / self._spread(other)
        moved = np.concatenate([shift, np.log(ratio)])
        total = np.add.reduceat(moved * moved, self._starts)
        return float(np.sqrt((total / self._sizes).max()))

    def between(self, start: Vector, end: Vector, share: float) -> Vector:
        """Interpolate between the statistics `start` (``share`` 0) and `end` (``share`` 1)."""
        found = (start + share * (end.astype(np.float64) - start)).astype(np.float32)
        low, high = self._spread(start), self._spread(end)
        found[self._variances] = np.maximum(low * (high / low) ** share - EPSILON, 0)
        return found

    def _spread(self, statistics: Vector) -> NDArray[np.float64]:
        """Return the running variances in (s,) statistics, plus BatchNorm's epsilon."""
        spread: NDArray[np.float64] = statistics[self._variances].astype(np.float64) + EPSILON
        return spread


scale_of = lru_cache(maxsize=16)(Scale)


def is_statistic(name: str) -> bool:
    """Return whether a tensor is one of BatchNorm's running statistics, to judge by its name."""
    return own_name(name) in BUFFERS


def own_name(name: str) -> str:
    """Return a tensor's name within its module, the part after the last dot."""
    return name.rpartition(".")[2]


@lru_cache(maxsize=64)
def exact_tensors(layout: Layout, patterns: tuple[str, ...] = ()) -> tuple[int, ...]:
    """Return the positions of the running statistics, and of tensors that match a pattern.

    A pattern is a name that may hold the wildcards `*`, `?` and `[...]` of `fnmatch`.
    """
    return tuple(t for t, n in enumerate(layout.names) if is_statistic(n) or matches(n, patterns))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@lru_cache(maxsize=64)
def expect_matches(layout: Layout, patterns: tuple[str, ...]) -> None:
    """Raise ValueError for a pattern that matches none of a layout's tensors."""
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in layout.names):
            names = ", ".join(layout.names)
            raise ValueError(f"exact={pattern!r} matches no tensor; there are {names}")


def changes(model: Vector, start: Vector, layout: Layout, patterns: tuple[str, ...] = ()) -> Vector:
    """Return a new (n,) vector: the model's values in exact tensors, elsewhere model - start."""
    difference: Vector = model - start
    for first, last in runs(layout, exact_tensors(layout, patterns)):
        difference[first:last] = model[first:last]
    return difference


@lru_cache(maxsize=64)
def variances(layout: Layout) -> tuple[Extent, ...]:
    """Return the start and stop, in a model's vector, of each running variance of BatchNorm."""
    return runs(layout, [t for t, name in enumerate(layout.names) if own_name(name) == VARIANCE])


def expect_counts(own: Iterable[NativeTensor]) -> None:
    """Raise `PayloadError` if BatchNorm's count of mini-batches, a divisor, is negative."""
    if any(own_name(each.name) == COUNT and (each.array < 0).any() for each in own):
        raise PayloadError("its update holds a count of mini-batches below 0")


def below_zero(layout: Layout, vector: Vector) -> bool:
    """Return whether one of BatchNorm's running variances is below zero."""
    return any((vector[start:stop] < 0).any() for start, stop in variances(layout))


@lru_cache(maxsize=64)
def trained_entries(layout: Layout) -> int:
    """Return the number of trained entries; BatchNorm's statistics must come after all of them.

    Raises ValueError if a trained tensor comes after a running statistic.
    """
    statistics = exact_tensors(layout)
    first = len(layout) - len(statistics)
    if statistics != tuple(range(first, len(layout))):
        raise ValueError("BatchNorm's running statistics must come after all parameters")
    return int(layout.offsets[first])


@lru_cache(maxsize=64)
def separate(layout: Layout, exact: tuple[int, ...]) -> Separation:
    """Return the `Separation` of a layout: the tensors at the increasing positions ``exact``."""
    chosen = set(exact)
    trained = [t for t in range(len(layout)) if t not in chosen]
    exact_runs = runs(layout, exact)
    before = list(accumulate((stop - start for start, stop in exact_runs), initial=0))
    return Separation(
        exact,
        layout.without(exact),
        runs(layout, trained),
        exact_runs,
        before[-1],
        tuple(start - done for (start, _), done in zip(exact_runs, before, strict=False)),
    )


def runs(layout: Layout, tensors: Sequence[int]) -> tuple[Extent, ...]:
    """Return start and stop, in the vector, of each block of tensors at increasing positions."""
    bounds = layout.offsets.tolist()
    found: list[Extent] = []
    for tensor in tensors:
        start = bounds[tensor]
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, bounds[tensor + 1]))
    return tuple(found)


def _gather(vector: Vector, pieces: tuple[Extent, ...]) -> Vector:
    if len(pieces) == 1:
        return vector[slice(*pieces[0])]
    return np.concatenate([vector[:0], *(vector[start:stop] for start, stop in pieces)])
