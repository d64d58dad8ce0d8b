"""Rotates chunks of values: multiplies by random signs, then by Hadamard's matrix.

The product with Hadamard's matrix is computed as two smaller matrix products. The module also has
the base class of the quantizers that rotate.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import (
    Bounds,
    Kind,
    Quantizer,
    Segments,
    Spec,
    StepContext,
    Streams,
    TensorSlices,
    Vector,
)
from .scaling import F4, check_scales

SCALES = ("unbiased", "least")
MOST = float(np.finfo(np.float32).max)
CHUNK = 1 << 13  # the most values that are rotated together
_LEAST = 8  # the smallest padded chunk, so that a chunk's bits fill whole bytes
_BATCH = 1 << 14  # entries that are processed at a time, in two arrays of 64 kB
_SIGNS = 1 - 2 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).astype(np.float32)
_HADAMARD = np.ones((1, 1), dtype=np.float32)
while len(_HADAMARD) < 128:  # its upper left corners are the smaller Hadamard matrices
    _HADAMARD = np.kron(np.array([[1, 1], [1, -1]], dtype=np.float32), _HADAMARD)


class EqualChunks(NamedTuple):
    """Consecutive chunks (values that are rotated together) of the same length."""

    length: int  # values per chunk
    padded: int  # length of a chunk padded with zeros to a power of two
    chunks: int


class Batch(NamedTuple):
    """Some chunks of equal length, and two uninitialised temporary arrays (c, padded) for them."""

    values: slice  # the chunks' slice of the vector
    chunks: slice  # numbers of the chunks
    bits: slice  # bytes, padded / 8 per chunk
    length: int  # values per chunk
    work: Vector
    spare: Vector


def runs(segments: Segments) -> Iterator[EqualChunks]:
    """Cut each tensor into chunks of CHUNK values and one chunk of the remaining values."""
    for length, equal in groupby(np.diff(segments).tolist()):
        tensors = sum(1 for _ in equal)
        if 0 < length <= CHUNK:
            yield EqualChunks(length, _padded(length), tensors)
        elif length:
            for _ in range(tensors):
                yield EqualChunks(CHUNK, CHUNK, length // CHUNK)
                if length % CHUNK:
                    yield EqualChunks(length % CHUNK, _padded(length % CHUNK), 1)


def batches(segments: Segments) -> Iterator[Batch]:
    """Yield the chunks of all tensors in order, in batches that share two temporary arrays."""
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
    """Divide (c, length) values by their chunk's largest magnitude, into ``batch.work``.

    Zeros pad each chunk. Returns the (c,) largest magnitudes.
    """
    here = (slice(None), slice(batch.length))
    largest: Vector = np.abs(values, out=batch.spare[here]).max(axis=1)
    # Values are not multiplied by 1 / largest, which overflows for the smallest magnitudes.
    np.divide(values, np.where(largest, largest, np.float32(1))[:, None], out=batch.work[here])
    batch.work[:, batch.length :] = 0
    return largest


class Rotated(NamedTuple):
    """Chunks x of a batch, divided by their largest magnitudes, and their rotations y = H D x."""

    batch: Batch
    largest: Vector  # (c,) max |x| before the division
    squares: Vector  # (c,) |x|^2
    entries: Vector  # (c, padded), y
    spare: Vector  # (c, padded), uninitialised


def rotations(values: Vector, segments: Segments, signs: NDArray[np.uint8]) -> Iterator[Rotated]:
    """Yield the rotated chunks of all tensors; ``signs``: the random bits of D."""
    for batch in batches(segments):
        largest = normalise(values[batch.values].reshape(-1, batch.length), batch)
        squares = np.einsum("ij,ij->i", batch.work, batch.work)
        as_signs(signs[batch.bits], batch.spare)
        np.multiply(batch.work, batch.spare, out=batch.work)
        yield Rotated(batch, largest, squares, *transform(batch.work, batch.spare))


def rotate_back(batch: Batch, signs: NDArray[np.uint8], scales: Vector, values: Vector) -> None:
    """Write scale D H e into ``values``, for each chunk of entries e in ``batch.work``.

    ``signs``: the random bits of D; ``scales``: (C,), of all chunks; ``values``: (n,).
    """
    rotated, spare = transform(batch.work, batch.spare)
    as_signs(signs[batch.bits], spare)
    rotated *= spare
    out = values[batch.values].reshape(-1, batch.length)
    np.multiply(rotated[:, : batch.length], scales[batch.chunks, None], out=out)


def random_bits(seed: int, size: int) -> NDArray[np.uint8]:
    """Return ``size`` random bytes of Philox4x64-10 (Salmon et al. 2011).

    The key is (seed, 0), and the counter starts at 1. The raw words are used, because only these
    are the same in all versions of numpy (NEP 19).
    """
    words = np.random.Philox(key=seed).random_raw(-(-size // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:size]


def as_signs(bits: NDArray[np.uint8], out: Vector) -> None:
    """Write 1 for each 0 bit and -1 for each 1 bit; the lowest bit of a byte is first."""
    # mode="raise" would need a second array. "clip" is safe, because no byte is out of bounds.
    np.take(_SIGNS, bits, axis=0, out=out.reshape(-1, 8), mode="clip")


def transform(work: Vector, spare: Vector) -> tuple[Vector, Vector]:
    """Multiply each of (c, d) rows by Hadamard's matrix; return the product and the unused array.

    The rows are in ``work``; the product is in one of the two arrays ``work`` and ``spare``. The
    matrix is Sylvester's, not normalised. Its entry (i, j) is (-1)^m, where m is the number of bits
    that are 1 in both i and j. The matrix equals H_a ⊗ H_b with d = a b. So the product of a row,
    written as a matrix X of shape (a, b), is H_a X H_b.
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


class RotatedQuantizer(Quantizer):
    """Base class of quantizers that send each entry of a random rotation as a level, and a scale.

    A level is an integer of a few bits. Streams: the seed, one uint64; C float32 scales; a stream
    for each bit of a level, d bits for a chunk of d padded values. ``top``: the largest level.
    ``bits``: those of a level. ``scale``: a field of each dataclass that derives from this class.
    """

    top: ClassVar[int]
    bits: int
    scale: str

    @abstractmethod
    def levels(self, rotated: Rotated, planes: Sequence[NDArray[np.uint8]]) -> Bounds:
        """Write the bits of a batch's levels to its part of ``planes``; return its (c,) scales."""

    @abstractmethod
    def unpack(self, batch: Batch, planes: Sequence[NDArray[np.uint8]]) -> None:
        """Write the levels of a batch, as float32, to ``batch.work``."""

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Rotate the values with a new random seed; return the seed, the scales and the levels.

        The values are processed in batches that fit into the cache.
        """
        seed, scales, *planes = (np.empty(spec.size, spec.dtype) for spec in self.specs(parts))
        seed[:] = step.generator.bit_generator.random_raw(1)
        signs = random_bits(int(seed[0]), len(planes[0]))
        for rotated in rotations(values, parts.segments, signs):
            scales[rotated.batch.chunks] = self.levels(rotated, planes)
        return seed, scales, *planes

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: seed, one scale per chunk, bits of padded values."""
        chunks = size = 0
        for run in runs(parts.segments):
            chunks += run.chunks
            size += run.chunks * run.padded // 8
        planes = [Spec(Kind.LEVELS, np.dtype("u1"), size, 256)] * self.bits
        return Spec(Kind.BYTES, np.dtype("<u8"), 1), Spec(Kind.FLOATS, F4, chunks), *planes

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Rotate the levels of each chunk back and multiply by the chunk's scale.

        The rotated levels are integers, which are exact on any machine. Only the product with the
        scale is rounded. Raises PayloadError for scales that are negative or not finite.
        """
        seed, scales, *planes = streams
        check_scales(scales, 1)
        signs = random_bits(int(seed[0]), len(planes[0]))
        values = np.empty(int(parts.segments[-1]), dtype=np.float32)
        for batch in batches(parts.segments):
            self.unpack(batch, planes)
            rotate_back(batch, signs, scales, values)
        if len(scales) and scales.max() > MOST / (CHUNK * self.top):  # a sum of CHUNK levels
            np.clip(values, -MOST, MOST, out=values)
        return values
