"""QSGD: stochastic rounding in buckets (Alistarh et al., NeurIPS 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Kind, PayloadError, Quantizer, Spec, StepContext, Streams, TensorSlices, Vector
from ..registry import register
from ..validation import bounded
from . import buckets
from .scaling import F4, check_scales, round_by_chance

_I1 = np.dtype("i1")


@register("quantizer")
@dataclass(frozen=True)
class Qsgd(Quantizer):
    """Rounds x at random to a neighbouring multiple of scale = norm / ``levels``, without bias.

    QSGD, "Communication-Efficient SGD via Gradient Quantization and Encoding", section 3.1, in
    buckets of ``bucket`` consecutive values across tensors (section 4). ``norm="max"`` uses the
    largest magnitude of a bucket, as the paper's experiments do. This norm has the smaller variance
    for the same number of levels. ``norm="l2"`` uses the L2 norm of a bucket, as the paper's theory
    does. The bounds for this norm do not depend on the data. At most about s (s + sqrt(d)) values
    of a bucket are not 0, where s is ``levels`` and d is ``bucket``. The defaults are the paper's 4
    bits and buckets of 512. The coder replaces the paper's Elias coding.

    Error: less than one scale. The bias is at most 2^-23 (|x| + scale).
    Streams: one float32 scale per bucket, k int8 in [-levels, levels].
    """

    name: ClassVar[str] = "qsgd"
    id: ClassVar[int] = 5
    sent_options: ClassVar[int] = 2

    levels: int = bounded(7, at_least=1, at_most=127)
    bucket: int = bounded(512, at_least=buckets.SMALLEST, at_most=buckets.LARGEST)
    norm: str = bounded("max", one_of=("max", "l2"))

    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Divide values by their bucket's scale, round at random, and convert to int8.

        The values are processed in groups of buckets that fit into the cache.
        """
        # A norm beyond float32 becomes float32's largest number, which no value exceeds.
        norm = buckets.norms if self.norm == "l2" else buckets.magnitudes
        scales = buckets.steps(norm(values, self.bucket), self.levels)
        levels = np.empty(len(values), dtype=_I1)
        work = buckets.temporary(len(values), self.bucket)
        draws = np.empty_like(work)
        for here, which in buckets.chunks(len(values), self.bucket):
            scaled = buckets.divide(values[here], scales[which], self.bucket, work)
            round_by_chance(scaled, self.levels, step.generator, draws[: len(scaled)])
            np.copyto(levels[here], scaled, casting="unsafe")
        return scales.astype(F4, copy=False), levels

    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return the `Spec` of each stream: one scale per bucket, one int8 level per value."""
        scales = Spec(Kind.FLOATS, F4, buckets.count(parts, self.bucket))
        return scales, Spec(Kind.LEVELS, _I1, int(parts.segments[-1]))

    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Multiply each level by its bucket's scale.

        Raises PayloadError for levels whose magnitude exceeds the highest level, for negative
        scales, and for scales that are infinite when multiplied by the highest level.
        """
        top, size = self.levels, self.bucket
        scales = streams[0].astype(np.float32, copy=False)
        levels = streams[1]
        check_scales(scales, top)
        values = np.empty(len(levels), dtype=np.float32)
        for here, which in buckets.chunks(len(levels), size):
            part = levels[here]
            if part.min() < -top or part.max() > top:
                raise PayloadError(f"payload holds a qsgd level beyond {top}")
            buckets.multiply(part, scales[which], size, values[here])
        return values
