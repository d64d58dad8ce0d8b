"""Factors of low rank on a basis that all nodes share, so that sums of factors have a meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from .grid import I2, Ints, SummableQuantizer
from .powersgd import Factored, as_matrix, plan
from .scaling import F4, U1

MOST_BASIS = 1 << 14  # the largest integer of a basis
RANDOM = -8, 9  # integers of a random basis: from the first number to below the second
DEPENDENT = 1e-6  # a column whose rest is shorter than this share of it depends on the others


class Basis(NamedTuple):
    """A basis that nodes have in common, as integers.

    `side`: 0 if it is of the columns of the matrices M, (cols, rank) each, and 1 if it is of the
    rows. `numbers`: int64, all (cols, rank) or (rows, rank) in a row.
    """

    todo: Factored
    side: int
    numbers: NDArray[np.int64]

    @property
    def inner(self) -> TensorSlices:
        """The cut of the levels into factors and whole tensors."""
        pieces = [*_places(self.todo, 1 - self.side), *(here for _, here in self.todo.raw)]
        return TensorSlices(np.cumsum([0, *(p.stop - p.start for p in pieces)], dtype=np.int64))

    def projected(self, values: Vector) -> Vector:
        """Return the factors of the matrices on the basis, and the whole tensors, in a row."""
        given = [np.empty(0, np.float32)]
        for matrix, columns in zip(self.todo.matrices, self.orthonormal(), strict=True):
            m = as_matrix(values[matrix.values], matrix)
            given.append(((m.T if self.side else m) @ columns).reshape(-1))
        return np.concatenate(given + [values[piece] for piece, _ in self.todo.raw])

    def orthonormal(self) -> Iterator[Vector]:
        """Yield the bases, (cols, rank) or (rows, rank) float32 each, with orthonormal columns.

        This is Gram-Schmidt in float64. A column that depends on those before becomes 0, because
        its rest is a rounding error, which differs between machines.
        """
        for place, matrix in zip(_places(self.todo, self.side), self.todo.matrices, strict=True):
            length = matrix.rows if self.side else matrix.cols
            columns = self.numbers[place].reshape(length, -1).T.astype(np.float64)
            for number, column in enumerate(columns):
                whole = np.linalg.norm(column)
                for _ in range(2):  # a second pass takes away what rounding has left
                    column -= columns[:number].T @ (columns[:number] @ column)
                rest = np.linalg.norm(column)
                column *= 1 / rest if rest > DEPENDENT * whole else 0
            yield np.ascontiguousarray(columns.T, dtype=np.float32)

    def lifted(self, given: Vector) -> Vector:
        """Return the values of all tensors from factors and whole tensors."""
        factors = []
        for place, basis in zip(_places(self.todo, 1 - self.side), self.orthonormal(), strict=True):
            factor = given[place].reshape(-1, basis.shape[1])
            factors.append((basis, factor, 1.0) if self.side else (factor, basis, 1.0))
        return self.todo.multiplied(factors, given[self.todo.sizes[1 + self.side] :])


@register("quantizer")
@dataclass(frozen=True)
class LowRank(SummableQuantizer):
    """Sends one factor of each matrix M, on a basis that all nodes have in common, as levels.

    The basis B has ``rank`` orthonormal columns. In every second step a node sends M B, and M is
    taken as (M B) B^T. In the others it sends M^T B, and M is taken as B (M^T B)^T. The factor of a
    sum of matrices is the sum of their factors. The next basis is the factor of the last sum, made
    orthonormal, as in the subspace iteration of PowerSGD (Vogels et al. 2019, Algorithm 1), which
    sends both factors in each step. Each factor has one scale. A tensor that would have no fewer
    entries as two factors is sent whole, as levels.

    Streams, for T' factors and whole tensors: the scales; the integers of the basis and the levels
    of the factors, by rows and columns of the matrices; the levels of the whole tensors; the sizes;
    the side of the basis.
    """

    name: ClassVar[str] = "lowrank"
    id: ClassVar[int] = 13
    sent_options: ClassVar[int] = 2

    rank: int = bounded(2, at_least=1, at_most=64)
    levels: int = bounded(1, at_least=1, at_most=127)
    reach: float = bounded(1.5, at_least=0.01, at_most=100)
    stochastic: bool = False

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Project the matrices onto the basis, and quantize the factors.

        Without ``step.common`` the basis is random, and the sizes are those of this node.
        """
        if step.common is None:
            basis, sizes = self._random(parts, step.generator), None
        else:
            basis, sizes = self._read(step.common, parts)
        side, inner = basis.side, replace(step, common=sizes)
        scales, levels, own = super().encode(basis.projected(values), basis.inner, inner)
        factors, whole = np.split(levels, [basis.todo.sizes[1 + side]])
        halves = [factors.astype(I2), basis.numbers.astype(I2)]
        pair = np.concatenate(halves[::-1] if side else halves)
        return scales, pair, whole, own, np.array([side], dtype=U1)

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream."""
        todo = plan(parts, self.rank)
        count, rows, cols, whole = todo.sizes
        return (
            Spec(Kind.FLOATS, F4, count + len(todo.raw)),
            Spec(Kind.LEVELS, I2, rows + cols),
            Spec(Kind.LEVELS, self.dtype, whole),
            Spec(Kind.LEVELS, I2, count + len(todo.raw)),
            Spec(Kind.BYTES, U1, 1),
        )

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Multiply the factors by the basis.

        Raises PayloadError for another side than 0 and 1, and for integers beyond their bounds.
        """
        scales, pair, _, _, (side,) = streams
        todo = plan(parts, self.rank)
        numbers = np.split(pair, [todo.sizes[1]])[0 if side else 1]
        basis = _expected(Basis(todo, int(side), numbers.astype(np.int64)))
        return basis.lifted(super().decode((scales, *self.summed(streams, parts)), basis.inner))

    def entries(self, common: Sequence[int], parts: TensorSlices) -> int:
        """Return the entries of the factors, and of the tensors that are sent whole."""
        basis, sizes = self._read(common, parts)
        return super().entries(sizes, basis.inner)

    def summed(self, streams: Streams, parts: TensorSlices) -> tuple[Ints, Ints]:
        """Return the levels, and the sizes."""
        _, pair, whole, sizes, (side,) = streams
        factors = np.split(pair, [plan(parts, self.rank).sizes[1]])[1 if side else 0]
        return np.concatenate([factors, whole]), sizes

    def mean_of(
        self, total: Ints, nodes: int, common: Sequence[int], parts: TensorSlices
    ) -> Vector:
        """Multiply the mean factors by the basis."""
        basis, sizes = self._read(common, parts)
        return basis.lifted(super().mean_of(total, nodes, sizes, basis.inner))

    def first_common(
        self, model: Vector, parts: TensorSlices, generator: np.random.Generator
    ) -> list[int]:
        """Return a random basis, and the sizes of the model's factors on it."""
        basis = self._random(parts, generator)
        return _common(basis, super().first_common(basis.projected(model), basis.inner, generator))

    def next_common(
        self,
        total: Ints,
        sizes: Ints,
        nodes: int,
        common: Sequence[int],
        parts: TensorSlices,
        generator: np.random.Generator,
    ) -> list[int]:
        """Return the other side, the mean sizes and the sum of the factors as the next basis.

        The columns of a factor that are 0 become random, because a basis needs them.
        """
        mean = super().next_common(total, sizes, nodes, common, parts, generator)
        todo, side = plan(parts, self.rank), 1 - self._read(common, parts)[0].side
        numbers = np.clip(total[: todo.sizes[2 - side]], -MOST_BASIS, MOST_BASIS).astype(np.int64)
        fresh = generator.integers(*RANDOM, len(numbers))
        for place in _places(todo, side):
            here = numbers[place].reshape(-1, self.rank)
            np.copyto(here, fresh[place].reshape(here.shape), where=~here.any(axis=0))
        return _common(Basis(todo, side, numbers), mean)

    def _random(self, parts: TensorSlices, generator: np.random.Generator) -> Basis:
        todo = plan(parts, self.rank)
        return Basis(todo, 0, generator.integers(*RANDOM, todo.sizes[2]))

    def _read(self, common: Sequence[int], parts: TensorSlices) -> tuple[Basis, Sequence[int]]:
        """Return the basis and the sizes in a header; raise PayloadError for another basis."""
        first = 1 + self.tensors(parts)
        numbers = np.array(common[first:], dtype=np.int64)
        side = common[0] if common else 2
        basis = Basis(plan(parts, self.rank), side, (numbers >> 1) ^ -(numbers & 1))
        return _expected(basis), common[1:first]


def _expected(basis: Basis) -> Basis:
    """Return a basis from elsewhere; raise PayloadError if it does not fit the model."""
    todo, side, numbers = basis
    fits = side < 2 and len(numbers) == todo.sizes[2 - side]
    if not fits or np.abs(numbers).max(initial=0) > MOST_BASIS:
        raise PayloadError("the common basis is not one of the model's matrices")
    return basis


def _common(basis: Basis, sizes: list[int]) -> list[int]:
    """Return basis and sizes as a header holds them: small numbers from 0 on take one byte."""
    numbers = basis.numbers
    return [basis.side, *sizes, *((numbers << 1) ^ (numbers >> 63)).tolist()]


def _places(todo: Factored, side: int) -> list[slice]:
    """Return the slices of the matrices' factors; `side`: 0 for those of the columns."""
    return [matrix.p if side else matrix.q for matrix in todo.matrices]
