"""Gradient dropping (Aji & Heafield 2017): leaves out a share of the entries, the smallest."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..base import Indices, ResidualSparsifier, StepContext, Vector
from ..per_tensor import SCOPES, count, largest_in
from ..registry import register
from ..selection import above, largest
from ..validation import bounded

SAMPLE = 0.001  # the sample's share of the entries, as in the paper; at least LEAST entries
LEAST = 1000


@register("sparsifier")
@dataclass(frozen=True)
class GradientDropping(ResidualSparsifier):
    """Sends the largest entries of residual + update; the share ``drop`` is not sent.

    The residual stores the entries that are not sent.

    Aji & Heafield 2017, "Sparse communication for distributed gradient descent", Algorithm 1.
    ``scope="global"`` has one threshold for the model, as in the paper. ``scope="tensor"`` has one
    threshold for each tensor. ``cut="sampled"`` computes the threshold from a random sample of
    0.1 % of the entries, at least 1,000, as in the paper. So the number of entries sent varies.
    ``cut="exact"`` sends exactly the share 1 - ``drop``.
    """

    name: ClassVar[str] = "gradient_dropping"
    id: ClassVar[int] = 3

    drop: float = bounded(0.99, at_least=0, below=1)
    scope: str = bounded("global", one_of=SCOPES)
    cut: str = bounded("exact", one_of=("exact", "sampled"))

    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices of the entries to send."""
        share = 1 - self.drop
        if self.cut == "exact":
            return largest_in(given, step.layout, share, self.scope)
        generator = step.generator
        if self.scope == "global":
            return _sampled(given, share, generator)
        found = [
            _sampled(given[start:stop], share, generator) + np.uint32(start)
            for start, stop in pairwise(step.layout.offsets.tolist())
            if stop > start
        ]
        return np.concatenate([np.empty(0, dtype=np.uint32), *found])


def _sampled(values: Vector, share: float, generator: np.random.Generator) -> Indices:
    """Return the indices of magnitudes above a threshold: a quantile of a random sample."""
    size = min(len(values), max(LEAST, int(SAMPLE * len(values))))
    if not size:
        return np.empty(0, dtype=np.uint32)
    sample = np.abs(values[generator.integers(len(values), size=size)])
    last = largest(sample, count(share, size))
    threshold = float(sample[last].min(initial=np.inf))
    # Entries equal to the threshold are selected too, but never zeros.
    return above(values, threshold, inclusive=threshold > 0)
