"""PowerSGD: sends a tensor as a product of two thin matrices (Vogels et al., NeurIPS 2019)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from ..base import Kind, PayloadError, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector
from ..layout import Layout
from ..registry import register
from ..validation import bounded
from .scaling import F4, check_scales

_MEMORY = "powersgd"
_BLOCK = 1 << 14  # entries of a product that are computed at a time
_MOST = float(np.finfo(np.float32).max)
# Bounds of |P| and |Q| in payloads that the encoder makes. P is orthonormal. M has at most 2^28
# rows, with entries up to 1.
_MOST_P, _MOST_Q = 2.0, 2.0**15


@register("quantizer")
@dataclass(frozen=True)
class PowerSgd(Quantizer):
    """Sends each matrix M as two factors P and Q of low rank, where P Q^T approximates M.

    This is Algorithm 1 of Vogels et al. with warm start. One step of subspace iteration computes
    P = M Q, makes P orthonormal, and computes Q = M^T P. The next step begins with this step's Q. M
    is a tensor of shape (out, ...), written as a matrix of out rows and divided by its largest
    magnitude. This magnitude is sent as the scale. A tensor is sent uncompressed if it has fewer
    than two dimensions, or no more entries than P and Q together. If only k entries of a tensor are
    selected, they fill a matrix of ceil(sqrt(k)) columns row by row. Zeros pad the last row. In
    this case each step starts with a random Q, because the selected entries have other positions at
    each step.

    In the paper all workers begin with the same Q, and all-reduce first P, then Q. Their result is
    a matrix of this rank that approximates the mean of the matrices M. Here each node begins with a
    different Q and sends its P and Q, and the server averages the products. So a payload can be
    decoded alone, and one message per step is enough. The rank of the mean is up to ``rank`` times
    the number of nodes. But the server's traffic grows with the number of nodes. P is made
    orthonormal by QR in float64 instead of Gram-Schmidt. QR gives the same space, and also works if
    M Q has dependent columns.

    Streams, float32: T' scales; all P, (rows, rank) each; all Q, (cols, rank) each; the
    uncompressed tensors.
    """

    name: ClassVar[str] = "powersgd"
    id: ClassVar[int] = 8
    feedback: ClassVar[bool] = True
    sent_options: ClassVar[int] = 1

    rank: int = bounded(2, at_least=1, at_most=64)

    def memory_bytes(self, layout: Layout) -> int:
        """Return the bytes of the matrices Q that a node stores, if all entries are sent."""
        return 4 * plan(TensorSlices(layout.offsets, layout.shapes), self.rank).sizes[2]

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Take one step of subspace iteration for each tensor; change the stored Q in place."""
        todo = plan(parts, self.rank)
        scales, p, q, raw = (np.empty(size, dtype=F4) for size in todo.sizes)
        start = _start(step, len(q), kept=parts.shapes is not None)
        for number, matrix in enumerate(todo.matrices):
            m = as_matrix(values[matrix.values], matrix)
            scales[number] = largest = abs(max(m.max(), -m.min()))
            # Normalise only if products could exceed float32's range.
            if not 2.0**-60 < largest < 2.0**60:
                m = m / (largest or np.float32(1))
                largest = np.float32(1)
            here = start[matrix.q].reshape(matrix.cols, -1)
            _revive(here, step)
            left, right = _iterate(m, here)
            right /= largest
            p[matrix.p], q[matrix.q] = left.reshape(-1), right.reshape(-1)
            if scales[number]:  # a tensor of zeros has no information about the subspace
                here[:] = right
        if todo.raw:
            np.concatenate([values[piece] for piece, _ in todo.raw], out=raw)
        return scales, p, q, raw

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: scales, all P, all Q, the uncompressed tensors."""
        return tuple(Spec(Kind.FLOATS, F4, size) for size in plan(parts, self.rank).sizes)

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Compute scale P Q^T for each tensor, clipped to finite float32 values.

        Raises PayloadError if P or Q has larger entries than the encoder makes.
        """
        scales, p, q, raw = streams
        check_scales(scales, 1)
        if not (_within(p, _MOST_P) and _within(q, _MOST_Q) and _within(raw, _MOST)):
            raise PayloadError("payload holds numbers that are too large or not finite")
        todo = plan(parts, self.rank)
        left = (p[each.p].reshape(each.rows, -1) for each in todo.matrices)
        right = (q[each.q].reshape(each.cols, -1) for each in todo.matrices)
        return todo.multiplied(zip(left, right, scales.tolist(), strict=True), raw)


def _start(step: StepContext, size: int, *, kept: bool) -> Vector:
    """Return the stored matrices Q of all tensors, (size,) float32, or new ones (Gaussian).

    `kept`: whether they are stored, and new ones are stored for the next step.
    """
    memory = step.memory if kept else {}
    found = memory.get(_MEMORY)
    if found is None or found.shape != (size,) or found.dtype != np.float32:
        found = memory[_MEMORY] = step.generator.standard_normal(size, dtype=np.float32)
    return found


def _within(values: Vector, most: float) -> bool:
    return not len(values) or bool(values.max() <= most and values.min() >= -most)


class Matrix(NamedTuple):
    """A tensor that is sent as a product P Q^T, and the slices of P and Q in the streams."""

    values: slice  # the tensor's slice of the vector
    rows: int
    cols: int
    p: slice  # in the stream of all P
    q: slice  # in the stream of all Q


class Factored(NamedTuple):
    """The tensors that are sent as products, and the tensors that are sent uncompressed."""

    matrices: list[Matrix]
    raw: list[tuple[slice, slice]]  # the other tensors' slices of the vector, and of their stream
    sizes: tuple[int, int, int, int]  # entries of the streams: scales (one per product), P, Q, raw
    entries: int  # of the vector

    def multiplied(self, factors: Iterable[tuple[Vector, Vector, float]], raw: Vector) -> Vector:
        """Return the values of all tensors, clipped to finite ones.

        ``factors``: P, Q and the scale of each product. ``raw``: the uncompressed tensors' values.
        """
        values = np.empty(self.entries, dtype=np.float32)
        for matrix, each in zip(self.matrices, factors, strict=True):
            _multiply(*each, values[matrix.values])
        for piece, here in self.raw:
            values[piece] = raw[here]
        return values


def plan(parts: TensorSlices, rank: int) -> Factored:
    """Decide, at both ends, which tensors have more entries than P and Q together."""
    matrices: list[Matrix] = []
    raw: list[tuple[slice, slice]] = []
    p = q = others = 0
    for number, (start, stop) in enumerate(pairwise(parts.segments.tolist())):
        size = stop - start
        rows, cols = _shape(size, None if parts.shapes is None else parts.shapes[number])
        if rank * (rows + cols) < size:
            past_p, past_q = p + rank * rows, q + rank * cols
            where = slice(p, past_p), slice(q, past_q)
            matrices.append(Matrix(slice(start, stop), rows, cols, *where))
            p, q = past_p, past_q
        else:
            raw.append((slice(start, stop), slice(others, others + size)))
            others += size
    return Factored(matrices, raw, (len(matrices), p, q, others), int(parts.segments[-1]))


def _shape(size: int, shape: tuple[int, ...] | None) -> tuple[int, int]:
    """Return the rows and columns of a tensor's matrix; nearly a square without a shape."""
    if shape is None:
        cols = math.isqrt(max(size - 1, 0)) + 1
        return -(-size // cols), cols
    rows = shape[0] if len(shape) > 1 else 1
    return rows, size // max(rows, 1)


def as_matrix(values: Vector, matrix: Matrix) -> Vector:
    """Return a tensor's values as (rows, cols), with the last row padded with zeros."""
    missing = matrix.rows * matrix.cols - len(values)
    if missing:
        values = np.concatenate([values, np.zeros(missing, dtype=np.float32)])
    return values.reshape(matrix.rows, matrix.cols)


def _revive(q: Vector, step: StepContext) -> None:
    """Replace columns of Q that are zero by random Gaussian columns, in place.

    If the rank of M is low, columns of Q become zero. They would stay zero, because M 0 = 0.
    """
    dead = ~q.any(axis=0)
    if dead.any():
        shape = (len(q), int(np.count_nonzero(dead)))
        q[:, dead] = step.generator.standard_normal(shape, dtype=np.float32)


def _iterate(m: Vector, q: Vector) -> tuple[Vector, Vector]:
    """Take one step of subspace iteration with M = ``m`` (rows, cols) and Q = ``q`` (cols, rank).

    Returns P (rows, rank), an orthonormal basis of M Q, and the next Q (cols, rank), M^T P.
    """
    p = np.linalg.qr((m @ q).astype(np.float64))[0].astype(np.float32)
    return p, m.T @ p


def _multiply(p: Vector, q: Vector, scale: float, out: Vector) -> None:
    """Set the flat ``out`` to P Q^T times ``scale``, clipped to finite values, without padding."""
    rows, cols = len(p), len(q)
    step = min(rows, max(1, _BLOCK // cols))
    work = np.empty((step, cols), dtype=np.float32)
    for row in range(0, rows, step):
        here = p[row : row + step]
        part = out[row * cols : (row + step) * cols]
        product = np.matmul(here, q.T, out=work[: len(here)]).reshape(-1)
        np.multiply(product[: len(part)], np.float32(scale), out=part)
    if scale > _MOST / 2.0**23:
        np.clip(out, -_MOST, _MOST, out=out)
