"""Factors of low rank on a basis that all nodes share, so that sums of factors have a meaning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from .grid import I2, Grid, Ints, SummableQuantizer, mean_sizes
from .powersgd import Factored, as_matrix, multiply_factors, plan
from .scaling import F4

I1, U1 = np.dtype("i1"), np.dtype("u1")
EMPTY = np.empty(0, np.float32)
MOST_BASIS = 1 << 14  # the largest integer of a basis
DEPENDENT = 1e-6  # a column whose rest is shorter than this share of it depends on the others


class Common(NamedTuple):
    """What nodes have in common: the side of the basis, the sizes, and the basis as integers.

    `side`: 0 if the basis is of the columns of the matrices M, (cols, rank) each, and 1 if it is of
    the rows. `sizes`: (T',). `basis`: int64, all (cols, rank) or (rows, rank) in a row.
    """

    side: int
    sizes: list[int] | None
    basis: NDArray[np.int64]


@register("quantizer")
@dataclass(frozen=True)
class LowRank(SummableQuantizer):
    """Sends one factor of each matrix M, on a basis that all nodes have in common, as levels.

    The basis B has ``rank`` orthonormal columns. In every second step a node sends M B, and M is
    taken as (M B) B^T. In the others it sends M^T B, and M is taken as B (M^T B)^T. The factor of a
    sum of matrices is the sum of their factors. The next basis is the factor of the last sum, made
    orthonormal, as in the subspace iteration of PowerSGD (Vogels et al. 2019, Algorithm 1), which
    sends both factors in each step. Levels and scales are those of `Grid`, with one scale for a
    factor. A tensor that would have no fewer entries as two factors is sent whole, as levels.

    Streams, for T' factors and whole tensors: the scales; the integers of the basis and the levels
    of the factors, by rows and columns of the matrices; the levels of the whole tensors; the sizes;
    the side of the basis.
    """

    name: ClassVar[str] = "lowrank"
    id: ClassVar[int] = 13
    feedback: ClassVar[bool] = True
    sent_options: ClassVar[int] = 2

    rank: int = bounded(2, at_least=1, at_most=64)
    levels: int = bounded(1, at_least=1, at_most=127)
    reach: float = bounded(1.5, at_least=0.01, at_most=100)

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Project the matrices onto the basis, and quantize the factors.

        Without ``step.common`` the basis is random, and the sizes are those of this node.
        """
        todo = plan(parts, self.rank)
        if step.common is None:
            common = Common(0, None, _random(todo.sizes[2], step.generator))
        else:
            common = self._read(step.common, todo)
        bases = _orthonormal(common, todo)
        factors = [
            (m @ basis if common.side == 0 else m.T @ basis).reshape(-1)
            for m, basis in zip(_matrices(values, todo), bases, strict=True)
        ]
        given = np.concatenate([EMPTY, *factors, *(values[piece] for piece in todo.raw)])
        inner = replace(step, common=common.sizes)
        scales, levels, sizes = self._grid.encode(given, _inner(todo, common.side), inner)
        split = len(levels) - todo.sizes[3]
        halves = [common.basis.astype(I2), levels[:split].astype(I2)]
        sides = halves[::-1] if common.side == 0 else halves
        side = np.array([common.side], dtype=U1)
        return scales, np.concatenate(sides), levels[split:], sizes, side

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream."""
        todo = plan(parts, self.rank)
        count, rows, cols, whole = todo.sizes
        return (
            Spec(Kind.FLOATS, F4, count + len(todo.raw)),
            Spec(Kind.LEVELS, I2, rows + cols),
            Spec(Kind.LEVELS, I1, whole),
            Spec(Kind.LEVELS, I2, count + len(todo.raw)),
            Spec(Kind.BYTES, U1, 1),
        )

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Multiply the factors by the basis.

        Raises PayloadError for another side than 0 and 1, and for integers beyond their bounds.
        """
        scales, factors, whole, sizes, (side,) = streams
        todo = plan(parts, self.rank)
        rows = factors[: todo.sizes[1]], factors[todo.sizes[1] :]
        if side > 1 or (len(factors) and np.abs(rows[1 - side]).max(initial=0) > MOST_BASIS):
            raise PayloadError("payload holds no basis of low rank")
        basis = Common(int(side), None, rows[1 - side].astype(np.int64))
        levels = np.concatenate([rows[side], whole])
        given = self._grid.decode((scales, levels, sizes), _inner(todo, int(side)))
        return _lifted(given, basis, todo)

    def entries(self, common: Sequence[int], parts: TensorSlices) -> int:
        """Return the entries of the factors, and of the tensors that are sent whole."""
        todo = plan(parts, self.rank)
        return todo.sizes[1 + self._read(common, todo).side] + todo.sizes[3]

    def tensors(self, parts: TensorSlices) -> int:
        """Return T', the number of factors and of tensors that are sent whole."""
        todo = plan(parts, self.rank)
        return todo.sizes[0] + len(todo.raw)

    def summed(self, streams: Streams, parts: TensorSlices) -> tuple[Ints, Ints]:
        """Return the levels, and the sizes."""
        _, factors, whole, sizes, (side,) = streams
        rows = plan(parts, self.rank).sizes[1]
        return np.concatenate([factors[rows:] if side else factors[:rows], whole]), sizes

    def mean_of(
        self, total: Ints, nodes: int, common: Sequence[int], parts: TensorSlices
    ) -> Vector:
        """Multiply the mean factors by the basis."""
        todo = plan(parts, self.rank)
        found = self._read(common, todo)
        inner = _inner(todo, found.side)
        assert found.sizes is not None
        return _lifted(self._grid.mean_of(total, nodes, found.sizes, inner), found, todo)

    def next_common(
        self,
        total: Ints | None,
        sizes: Ints,
        nodes: int,
        common: Sequence[int],
        parts: TensorSlices,
        generator: np.random.Generator,
    ) -> list[int]:
        """Return the other side, the mean sizes and the sum of the factors as the next basis.

        The columns of a factor that are 0 become random, because a basis needs them.
        """
        todo = plan(parts, self.rank)
        if total is None:
            side, basis = 0, _random(todo.sizes[2], generator)
        else:
            side = 1 - self._read(common, todo).side
            basis = np.clip(total[: len(total) - todo.sizes[3]], -MOST_BASIS, MOST_BASIS)
            fresh = _random(len(basis), generator)
            for place in _places(todo, side):
                here, new = basis[place].reshape(-1, self.rank), fresh[place]
                dead = ~here.any(axis=0)
                here[:, dead] = new.reshape(here.shape)[:, dead]
        return [side, *mean_sizes(sizes, nodes), *_unsigned(basis)]

    @property
    def _grid(self) -> Grid:
        return Grid(self.levels, self.reach)

    def _read(self, common: Sequence[int], todo: Factored) -> Common:
        """Return what a header says; raise PayloadError for numbers that do not fit the model."""
        side, tensors = common[0] if common else 2, todo.sizes[0] + len(todo.raw)
        if side > 1 or len(common) != 1 + tensors + todo.sizes[2 - side]:
            raise PayloadError("the server's common basis is not one of the model's matrices")
        numbers = np.array(common[1 + tensors :], dtype=np.int64)
        basis = (numbers >> 1) ^ -(numbers & 1)
        if np.abs(basis).max(initial=0) > MOST_BASIS:
            raise PayloadError("the server's common basis is out of range")
        return Common(side, list(common[1 : 1 + tensors]), basis)


def _random(size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    return generator.integers(-8, 9, size)


def _unsigned(numbers: NDArray[np.int64]) -> list[int]:
    """Return integers as numbers from 0 on, so that small ones take one byte in a header."""
    found: list[int] = ((numbers << 1) ^ (numbers >> 63)).tolist()
    return found


def _places(todo: Factored, side: int) -> list[slice]:
    """Return the slices of the matrices' factors; `side`: 0 for those of the columns."""
    return [matrix.p if side else matrix.q for matrix in todo.matrices]


def _inner(todo: Factored, side: int) -> TensorSlices:
    """Return the cut of the levels into factors and whole tensors; `side`: of the basis."""
    sizes = [place.stop - place.start for place in _places(todo, 1 - side)]
    sizes += [piece.stop - piece.start for piece in todo.raw]
    return TensorSlices(np.cumsum([0, *sizes], dtype=np.int64))


def _matrices(values: Vector, todo: Factored) -> list[Vector]:
    return [as_matrix(values[matrix.values], matrix) for matrix in todo.matrices]


def _orthonormal(common: Common, todo: Factored) -> list[Vector]:
    """Return the bases, (cols, rank) or (rows, rank) float32 each, with orthonormal columns.

    This is Gram-Schmidt in float64. A column that depends on those before becomes 0, because its
    rest is a rounding error, which differs between machines.
    """
    found = []
    for place, matrix in zip(_places(todo, common.side), todo.matrices, strict=True):
        length = matrix.rows if common.side else matrix.cols
        columns = common.basis[place].reshape(length, -1).T.astype(np.float64)
        for number, column in enumerate(columns):
            whole = np.linalg.norm(column)
            for _ in range(2):  # a second pass takes away what rounding has left
                column -= columns[:number].T @ (columns[:number] @ column)
            rest = np.linalg.norm(column)
            column *= 1 / rest if rest > DEPENDENT * whole else 0
        found.append(np.ascontiguousarray(columns.T, dtype=np.float32))
    return found


def _lifted(given: Vector, common: Common, todo: Factored) -> Vector:
    """Return the values of all tensors from factors and whole tensors, clipped to finite values."""
    size = sum(m.values.stop - m.values.start for m in todo.matrices) + todo.sizes[3]
    values = np.empty(size, dtype=np.float32)
    pieces = zip(_places(todo, 1 - common.side), _orthonormal(common, todo), strict=True)
    for matrix, (place, basis) in zip(todo.matrices, pieces, strict=True):
        factor = given[place].reshape(-1, basis.shape[1])
        left, right = (basis, factor) if common.side else (factor, basis)
        multiply_factors(left, right, 1.0, values[matrix.values])
    done = len(given) - todo.sizes[3]
    for piece in todo.raw:
        size = piece.stop - piece.start
        values[piece] = given[done : done + size]
        done += size
    return values
