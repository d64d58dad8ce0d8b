"""Random rotation of chunks: random signs, then Hadamard's matrix, as two products of matrices."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Segments, Vector

CHUNK = 1 << 13  # values rotated together
_LEAST = 8  # so that the bits of a chunk are whole bytes
_BATCH = 1 << 14  # entries worked on at a time; two arrays of 64 kB
_SIGNS = 1 - 2 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).astype(np.float32)
_HADAMARD = np.ones((1, 1), dtype=np.float32)
while len(_HADAMARD) < 128:  # the upper left corners are the smaller matrices
    _HADAMARD = np.kron(np.array([[1, 1], [1, -1]], dtype=np.float32), _HADAMARD)


class Stretch(NamedTuple):
    """Chunks of one size, one after another."""

    length: int  # values of each
    padded: int  # of each, filled up with zeros to a power of two
    chunks: int


class Batch(NamedTuple):
    """Some chunks of a run, (c, padded) each in two arrays to work in, which hold anything."""

    values: slice  # in the vector
    chunks: slice
    bits: slice  # bytes, padded / 8 a chunk
    length: int
    work: Vector
    spare: Vector


def runs(segments: Segments) -> Iterator[Stretch]:
    """Cut each tensor into chunks of CHUNK values and one of what is left over."""
    for length, equal in groupby(np.diff(segments).tolist()):
        tensors = sum(1 for _ in equal)
        if 0 < length <= CHUNK:
            yield Stretch(length, _padded(length), tensors)
        elif length:
            for _ in range(tensors):
                yield Stretch(CHUNK, CHUNK, length // CHUNK)
                if length % CHUNK:
                    yield Stretch(length % CHUNK, _padded(length % CHUNK), 1)


def batches(segments: Segments) -> Iterator[Batch]:
    """Go through all chunks in order; the two arrays always are in the same memory."""
    most = sum(run.padded * run.chunks for run in runs(segments))
    work, spare = np.empty((2, min(most, _BATCH)), dtype=np.float32)
    value = chunk = byte = 0
    for length, padded, count in runs(segments):
        for done in range(0, count, _BATCH // padded):
            rows = min(count - done, _BATCH // padded)
            size = rows * padded
            yield Batch(
                slice(value, value + rows * length),
                slice(chunk, chunk + rows),
                slice(byte, byte + size // 8),
                length,
                work[:size].reshape(rows, padded),
                spare[:size].reshape(rows, padded),
            )
            value, chunk, byte = value + rows * length, chunk + rows, byte + size // 8


def normalise(values: Vector, batch: Batch) -> Vector:
    """Put (c, length) values over the largest of their chunk, and zeros, into ``batch.work``.

    Returns (c,) the largest magnitudes.
    """
    here = (slice(None), slice(batch.length))
    largest: Vector = np.abs(values, out=batch.spare[here]).max(axis=1)
    # Not times 1 / largest, which overflows for the smallest.
    np.divide(values, np.where(largest, largest, np.float32(1))[:, None], out=batch.work[here])
    batch.work[:, batch.length :] = 0
    return largest


def random_bits(seed: int, size: int) -> NDArray[np.uint8]:
    """Return ``size`` bytes of Philox4x64-10 (Salmon et al. 2011), key (seed, 0), counter from 1.

    Of numpy's generators only the raw words are promised to stay what they are (NEP 19).
    """
    words = np.random.Philox(key=seed).random_raw(-(-size // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:size]


def as_signs(bits: NDArray[np.uint8], out: Vector) -> None:
    """Write 1 for each bit that is 0 and -1 for each that is 1, the lowest of a byte first."""
    # mode="raise" would need a second array; no byte is out of bounds.
    np.take(_SIGNS, bits, axis=0, out=out.reshape(-1, 8), mode="clip")


def transform(work: Vector, spare: Vector) -> tuple[Vector, Vector]:
    """Multiply each of (c, d) rows by Hadamard's matrix; return the product and the other array.

    Sylvester's, not normalised: entry (i, j) is -1 to the number of ones that i and j share. It
    is H_a ⊗ H_b with d = a b: H_a X H_b for a row as the matrix X of (a, b).
    """
    rows, size = work.shape
    inner = min(size, len(_HADAMARD))
    outer = size // inner
    np.matmul(work.reshape(-1, inner), _HADAMARD[:inner, :inner], out=spare.reshape(-1, inner))
    if outer == 1:
        return spare, work
    square = (rows, outer, inner)
    np.matmul(_HADAMARD[:outer, :outer], spare.reshape(square), out=work.reshape(square))
    return work, spare


def _padded(length: int) -> int:
    return max(_LEAST, 1 << (length - 1).bit_length())
