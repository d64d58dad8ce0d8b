"""Low-rank approximation of a tensor, written as a matrix, by a product of two thin matrices."""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base import Rng, TensorSlices, Vector

_BLOCK = 1 << 14  # entries of a product that are computed at a time
_MOST = float(np.finfo(np.float32).max)


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
    raw: list[slice]  # the uncompressed tensors' slices of the vector
    sizes: tuple[int, int, int, int]  # entries of the streams: scales (one per product), P, Q, raw


def plan(parts: TensorSlices, rank: int) -> Factored:
    """Decide which tensors are sent as products: those with more entries than P and Q together.

    The result depends only on rank, sizes and shapes, which sender and receiver know.
    """
    matrices: list[Matrix] = []
    raw: list[slice] = []
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
            raw.append(slice(start, stop))
            others += size
    return Factored(matrices, raw, (len(matrices), p, q, others))


def _shape(size: int, shape: tuple[int, ...] | None) -> tuple[int, int]:
    """Return the rows and columns of the matrix that a tensor of ``size`` entries is written as.

    If only some entries of the tensor are sent, the matrix is nearly a square.
    """
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


def revive(q: Vector, rng: Rng) -> None:
    """Replace columns of Q that are zero by random Gaussian columns, in place.

    If the rank of M is low, columns of Q become zero. They would stay zero, because M 0 = 0.
    """
    dead = ~q.any(axis=0)
    if dead.any():
        shape = (len(q), int(np.count_nonzero(dead)))
        q[:, dead] = rng.generator.standard_normal(shape, dtype=np.float32)


def iterate(m: Vector, q: Vector) -> tuple[Vector, Vector]:
    """Take one step of subspace iteration with M = ``m`` (rows, cols) and Q = ``q`` (cols, rank).

    Returns P (rows, rank), an orthonormal basis of M Q, and the next Q (cols, rank), M^T P.
    """
    p = np.linalg.qr((m @ q).astype(np.float64))[0].astype(np.float32)
    return p, m.T @ p


def multiply(p: Vector, q: Vector, scale: float, out: Vector) -> None:
    """Set the flat ``out`` to P Q^T times ``scale``, clipped to finite values.

    Entries of P Q^T beyond the end of ``out``, which are padding, are left out.
    """
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
