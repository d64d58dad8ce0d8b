"""Quantizers with one scale per tensor; they process blocks that fit into the cache."""

from abc import abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import (
    Kind,
    PayloadError,
    Quantizer,
    Segments,
    Spec,
    StepContext,
    Streams,
    TensorSlices,
    Vector,
)

F4, U1 = np.dtype("<f4"), np.dtype("u1")
BLOCK = 1 << 16  # entries that are processed at a time; their 256 kB fit into a core's cache


class Piece(NamedTuple):
    """The part of one tensor that lies in a block."""

    tensor: int
    whole: slice  # the part's slice of the vector
    here: slice  # the part's slice of the block


class Block(NamedTuple):
    """A slice of up to BLOCK entries of a vector, with the part of each tensor that lies in it."""

    whole: slice  # the block's slice of the vector
    pieces: tuple[Piece, ...]
    tensors: NDArray[np.intp]  # (P,) the numbers of the parts' tensors
    starts: NDArray[np.intp]  # (P,) the parts' first positions in the block


def blocks(segments: Segments) -> tuple[Block, ...]:
    """Cut (n,) values at (T+1,) segments into blocks; the result is cached."""
    return _blocks(segments.tobytes())


def temporary(segments: Segments) -> Vector:
    """Return an uninitialised array as long as the largest block."""
    return np.empty(min(BLOCK, int(segments[-1])), dtype=np.float32)


def magnitudes(values: Vector, segments: Segments) -> Vector:
    """Return (T,) float32, max |x| of each tensor, 0 for an empty tensor."""
    found = np.zeros(len(segments) - 1, dtype=np.float32)
    work = temporary(segments)
    for block in blocks(segments):
        here = work[: block.whole.stop - block.whole.start]
        np.abs(values[block.whole], out=here)
        largest = np.maximum.reduceat(here, block.starts)
        found[block.tensors] = np.maximum(found[block.tensors], largest)
    return found


def divide(values: Vector, scales: Vector, block: Block, work: Vector) -> Vector:
    """Divide the values of a block by their tensors' scales, into ``work``.

    A tensor with the scale 0 holds only zeros.
    """
    divisors = scales.tolist()
    if len(set(divisors)) == 1:  # one call instead of one per tensor
        whole_block = work[: block.whole.stop - block.whole.start]
        return np.divide(values[block.whole], divisors[0] or 1.0, out=whole_block)
    for tensor, whole, here in block.pieces:
        # Values are not multiplied by 1 / scale, which overflows for the smallest scales.
        np.divide(values[whole], divisors[tensor] or 1.0, out=work[here])
    return work[: block.whole.stop - block.whole.start]


def root_mean_squares(values: Vector, segments: Segments, largest: Vector) -> NDArray[np.float64]:
    """Return (T,) float64, the root mean square of each tensor, 0 for an empty tensor.

    ``largest``: `magnitudes` of the same values.
    """
    squares = np.zeros(len(largest))
    work = temporary(segments)
    for block in blocks(segments):
        scaled = divide(values, largest, block, work)  # squares of x itself could overflow
        np.square(scaled, out=scaled)
        squares[block.tensors] += np.add.reduceat(scaled, block.starts)
    found: NDArray[np.float64] = np.sqrt(squares / np.maximum(np.diff(segments), 1)) * largest
    return found


def multiply(stream: NDArray[np.generic], scales: Vector, segments: Segments) -> Vector:
    """Return (n,) float32: each level in ``stream`` times its tensor's scale."""
    values = np.empty(len(stream), dtype=np.float32)
    factors = scales.tolist()
    if len(set(factors)) == 1:
        np.copyto(values, stream, casting="unsafe")
        values *= factors[0]
        return values
    work = temporary(segments)
    for block in blocks(segments):
        work[: block.whole.stop - block.whole.start] = stream[block.whole]
        for tensor, whole, here in block.pieces:
            np.multiply(work[here], factors[tensor], out=values[whole])
    return values


def check_scales(scales: Vector, levels: int) -> None:
    """Raise PayloadError unless all scales are >= 0, and finite when multiplied by ``levels``."""
    if not np.isfinite(scales * np.float32(levels)).all() or np.signbit(scales).any():
        raise PayloadError("payload holds a scale that is negative or not finite")


def round_by_chance(
    scaled: Vector, top: int, generator: np.random.Generator, draws: Vector
) -> None:
    """Round (m,) float32 to integers in [-top, top] at random, in place; 0 stays 0.

    x becomes floor(x + u), where u is uniform among the multiples of 2^-24 in [0, 1). The
    expectation is x, up to 2^-24 and to float32's rounding of x + u. A result of top + 1, which
    this rounding can cause, is clipped. ``draws``: (m,) float32, a temporary array.
    """
    generator.random(dtype=np.float32, out=draws)
    np.add(scaled, draws, out=scaled)
    np.floor(scaled, out=scaled)
    np.clip(scaled, -top, top, out=scaled)


def widen(halves: NDArray[np.generic], out: Vector | None = None) -> Vector:
    """Return (m,) float32 with the upper 16 bits ``halves``; ``out``, if given, is the result."""
    values = np.empty(len(halves), dtype=np.float32) if out is None else out
    bits = values.view(np.uint32)
    np.copyto(bits, halves, casting="unsafe")
    np.left_shift(bits, 16, out=bits)
    return values


def check_padding(packed: NDArray[np.uint8], count: int, bits: int) -> None:
    """Raise PayloadError unless all bits after the first ``count`` levels are 0.

    ``bits``: bits per level, 1, 2 or 4.
    """
    used = count * bits % 8
    if used and packed[-1] >> used:
        raise PayloadError("payload holds padding that is not 0")


@lru_cache(maxsize=64)
def _blocks(segments: bytes) -> tuple[Block, ...]:
    bounds = np.frombuffer(segments, dtype=np.int64)
    cuts = np.union1d(bounds, np.arange(0, bounds[-1], BLOCK))
    owners = np.searchsorted(bounds, cuts[:-1], side="right") - 1
    found: dict[int, list[tuple[int, int, int]]] = {}
    for tensor, start, stop in zip(
        owners.tolist(), cuts[:-1].tolist(), cuts[1:].tolist(), strict=True
    ):
        found.setdefault(start // BLOCK, []).append((tensor, start, stop))
    return tuple(_block(number * BLOCK, parts) for number, parts in found.items())


def _block(first: int, parts: list[tuple[int, int, int]]) -> Block:
    pieces = tuple(
        Piece(tensor, slice(start, stop), slice(start - first, stop - first))
        for tensor, start, stop in parts
    )
    return Block(
        slice(first, parts[-1][2]),
        pieces,
        np.array([piece.tensor for piece in pieces], dtype=np.intp),
        np.array([piece.here.start for piece in pieces], dtype=np.intp),
    )


class ScaledQuantizer(Quantizer):
    """Base class of quantizers that divide each tensor by a scale, and round the quotients.

    The rounded quotients are called levels. Streams: T float32 scales, k levels of ``dtype``.
    Class variables: ``dtype`` and ``kind`` of the stream of levels, and ``top``, the largest level.
    """

    dtype: ClassVar[np.dtype[Any]]
    kind: ClassVar[Kind] = Kind.LEVELS
    top: ClassVar[int] = 1

    @abstractmethod
    def scales(self, values: Vector, parts: TensorSlices) -> Vector:
        """Return the scale of each tensor, (T,) float32."""

    def round(self, scaled: Vector, step: StepContext, draws: Vector) -> None:
        """Round (m,) quotients to levels in place; ``draws``: (m,) float32, a temporary array.

        Here nothing is done: the conversion to ``dtype`` rounds them.
        """

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Divide values by their tensor's scale, round them, and convert them to ``dtype``."""
        scales = self.scales(values, parts)
        return scales.astype(F4, copy=False), self.rounded(values, scales, parts, step)

    def rounded(
        self, values: Vector, scales: Vector, parts: TensorSlices, step: StepContext
    ) -> NDArray[Any]:
        """Return the (k,) levels of values, for the (T,) scales of their tensors.

        The values are processed in blocks that fit into the cache.
        """
        levels = np.empty(len(values), dtype=self.dtype)
        work = temporary(parts.segments)
        draws = np.empty_like(work)
        for block in blocks(parts.segments):
            scaled = divide(values, scales, block, work)
            self.round(scaled, step, draws[: len(scaled)])
            np.copyto(levels[block.whole], scaled, casting="unsafe")
        return levels

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per tensor, one level per value."""
        scales = Spec(Kind.FLOATS, F4, len(parts.segments) - 1)
        return scales, Spec(self.kind, self.dtype, int(parts.segments[-1]))

    def checked(self, levels: NDArray[Any], parts: TensorSlices) -> NDArray[Any]:
        """Return the (k,) levels in a stream; raise PayloadError for levels that are never sent."""
        return levels

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Multiply each level by its tensor's scale.

        Raises PayloadError for scales that are negative, or not finite when multiplied by ``top``,
        and for levels that `encode` never makes.
        """
        scales = streams[0].astype(np.float32, copy=False)
        check_scales(scales, self.top)
        return multiply(self.checked(streams[1], parts), scales, parts.segments)
