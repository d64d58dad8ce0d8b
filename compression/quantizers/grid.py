"""Integer levels on a scale that all nodes share, so that a sum of levels is the sum of updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Kind, PayloadError, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from .scaling import (
    ScaledQuantizer,
    check_scales,
    magnitudes,
    multiply,
    root_mean_squares,
    round_by_chance,
)

# A size is the integer 8 log2(root mean square), so its error is at most 2^(1/16), 4.4 %.
STEPS = 8
LEAST, MOST = -160 * STEPS, 128 * STEPS  # float32's values are from 2^-149 to 2^128
OFFSET = -LEAST  # headers hold no negative numbers
FIRST = 0.25  # the size of a first update, as a share of that of the model's values
_ROOTS = np.exp2(np.arange(STEPS) / STEPS).astype(np.float32)
I2 = np.dtype("<i2")
Ints = NDArray[np.integer[Any]]
Sizes = NDArray[np.int64]


class SummableQuantizer(ScaledQuantizer):
    """Sends integers from -``levels`` to ``levels``, called levels, which can be added over nodes.

    A level is x / scale, rounded and clipped, and all nodes share the scale of a tensor. It is
    ``reach`` / ``levels`` times its common size, which is the geometric mean of the nodes' root
    mean squares of its values in the last round. So the sum of the nodes' levels, times the scale,
    is the sum of what the nodes sent, and a server needs only the sum
    (`edgewire.compression.secure`). Without common sizes, a node uses its own. Scales are powers of
    2^(1/8), so that they are equal on all machines.

    Levels are rounded to the nearest, or with ``stochastic`` at random, so that a level's
    expectation is x / scale. This is for nodes that do not keep the error (`Codec.feedback`).

    What all nodes have in common, such as sizes, is a list of integers from 0 on (``common``). The
    server computes it after each round from the sums alone, and sends it with the next one. In the
    first round it is a guess from the model.

    Error: at most |x|, and at most scale / 2 for |x| below (levels + 1/2) scale. With
    ``stochastic`` it is below scale for |x| up to levels * scale.
    Streams: T float32 scales; k int8 levels; T int16 sizes of this node's values.
    """

    feedback: ClassVar[bool] = True
    dtype: ClassVar[np.dtype[Any]] = np.dtype("i1")
    top: ClassVar[int] = 127

    levels: int
    reach: float
    stochastic: bool

    def scales(self, values: Vector, parts: TensorSlices) -> Vector:
        """Return (T,) scales from the sizes of this node's values."""
        return self.scales_of(sizes_of(values, parts))

    def scales_of(self, sizes: Sizes) -> Vector:
        """Return (T,) scales for (T,) sizes, from 2^-126 to 2^120, so that results are finite."""
        factor = round(STEPS * float(np.log2(self.reach / self.levels)))
        found = np.clip(sizes + factor, -126 * STEPS, 120 * STEPS)
        scales: Vector = np.ldexp(_ROOTS[found % STEPS], found // STEPS)
        return scales

    def round(self, scaled: Vector, step: StepContext, draws: Vector) -> None:
        """Round half to even, or with ``stochastic`` at random, and clip, in place."""
        if self.stochastic:
            return round_by_chance(scaled, self.levels, step.generator, draws)
        np.rint(scaled, out=scaled)
        np.clip(scaled, -self.levels, self.levels, out=scaled)

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Round to the common scales, and measure the sizes of this node's values.

        ``step.common``: the common sizes, T integers from 0 on, which are sizes + `OFFSET`. A
        tensor of zeros has the common size for its own, so that it does not change the mean.
        """
        common = None if step.common is None else _checked(step.common, parts)
        own = sizes_of(values, parts, common)
        scales = self.scales_of(own if common is None else common)
        return scales, self.rounded(values, scales, parts, step), own.astype(I2)

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: scales, levels, sizes."""
        scales, levels = super().specs(parts)
        return scales, levels, Spec(Kind.LEVELS, I2, scales.size)

    def checked(self, levels: NDArray[Any], parts: TensorSlices) -> NDArray[Any]:
        """Return the levels; raise PayloadError for a level beyond ``levels``."""
        if len(levels) and max(int(levels.max()), -int(levels.min())) > self.levels:
            raise PayloadError(f"payload holds a level beyond {self.levels}")
        return levels

    def entries(self, common: Sequence[int], parts: TensorSlices) -> int:
        """Return how many levels a node sends; raise PayloadError for a wrong ``common``."""
        _checked(common, parts)
        return int(parts.segments[-1])

    def tensors(self, parts: TensorSlices) -> int:
        """Return how many sizes a node sends: as many as scales."""
        return self.specs(parts)[0].size

    def summed(self, streams: Streams, parts: TensorSlices) -> tuple[Ints, Ints]:
        """Return the levels and the sizes in the streams of `encode`."""
        return streams[1], streams[2]

    def mean_of(
        self, total: Ints, nodes: int, common: Sequence[int], parts: TensorSlices
    ) -> Vector:
        """Return the mean of the values that ``nodes`` nodes sent, (k,) float32.

        ``total``: the sums of their levels. ``common``: what they had in common.
        """
        scales = self.scales_of(_checked(common, parts)) / np.float32(nodes)
        check_scales(scales, self.levels * nodes)
        return multiply(total, scales, parts.segments)

    def first_common(
        self, model: Vector, parts: TensorSlices, generator: np.random.Generator
    ) -> list[int]:
        """Return what nodes have in common in a first round: sizes as if updates were `FIRST` x.

        ``model``: x, (k,) float32. A size that is too small clips levels, and one that is too large
        makes most of them 0.
        """
        return _common(sizes_of(model, parts) + round(STEPS * float(np.log2(FIRST))))

    def next_common(
        self,
        total: Ints,
        sizes: Ints,
        nodes: int,
        common: Sequence[int],
        parts: TensorSlices,
        generator: np.random.Generator,
    ) -> list[int]:
        """Return what the nodes of the next round have in common: here the mean of their sizes.

        ``total``: the sums of the levels of ``nodes`` nodes. ``sizes``: the sums of their sizes.
        ``common``: what they had in common.
        """
        return _common(np.rint(sizes / nodes))


@register("quantizer")
@dataclass(frozen=True)
class Grid(SummableQuantizer):
    """Sends x / scale, rounded and clipped to -levels..levels; all nodes share the scale."""

    name: ClassVar[str] = "grid"
    id: ClassVar[int] = 12
    sent_options: ClassVar[int] = 1

    levels: int = bounded(1, at_least=1, at_most=127)
    reach: float = bounded(1.5, at_least=0.01, at_most=100)
    stochastic: bool = False


def sizes_of(values: Vector, parts: TensorSlices, zeros: Sizes | None = None) -> Sizes:
    """Return (T,) sizes, 8 log2(root mean square) of each tensor, within `LEAST`..`MOST`.

    ``zeros``: the sizes of tensors that hold only zeros, or nothing; None: a size of 2^-20.
    """
    largest = magnitudes(values, parts.segments)
    squares = root_mean_squares(values, parts.segments, largest)
    zeros = np.full(len(largest), -20 * STEPS) if zeros is None else zeros
    known = squares > 0
    found = np.rint(STEPS * np.log2(np.where(known, squares, 1.0)))
    sizes: Sizes = np.where(known, np.clip(found, LEAST, MOST), zeros).astype(np.int64)
    return sizes


def _common(sizes: NDArray[Any]) -> list[int]:
    """Return sizes as a header holds them, integers from 0 on."""
    return [int(each) for each in np.clip(sizes, LEAST, MOST) + OFFSET]


def _checked(common: Sequence[int], parts: TensorSlices) -> Sizes:
    """Return common sizes from a header, (T,); raise PayloadError for others."""
    sizes = np.array(common, dtype=np.int64) - OFFSET
    if len(sizes) != len(parts.segments) - 1 or (len(sizes) and sizes.max() > MOST):
        raise PayloadError("the server's common sizes are not those of the model's tensors")
    return sizes
