"""CE-SGD: draws entries at random, more often those that were sent before the loss fell."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..base import Selection, Sparsifier, StepContext, Vector, fallen, get_or_zeros
from ..buffers import workspace
from ..layout import Layout
from ..per_tensor import SCOPES, count
from ..registry import register
from ..selection import largest, uniform
from ..validation import bounded

KEEPS = ("loss", "random")
OPERATORS = ("union", "map", "gradient", "proportional", "largest")


@register("sparsifier")
@dataclass(frozen=True)
class CESGD(Sparsifier):
    """Sends random entries, more often those that are large or whose sending reduced the loss.

    The set of these entries is the selection vector V. The values of other entries are discarded.

    Tao, Xia, Li, Cheng, "CE-SGD: Communication-efficient distributed machine learning",
    Algorithm 2, Definitions 1 to 3. ``scope="tensor"`` computes p for each tensor, as in the paper.
    ``scope="global"``, which is not in the paper, computes p for the whole model. At the first step
    each coordinate is in V with probability ``density``. If the loss has fallen since the last
    step, V stays the same. Otherwise V is drawn anew, V ~ Bernoulli(p). The ``operator`` determines
    p:

        map            p = M / max M                                (line 14, equation 7)
        gradient       p = |g| / max |g|                           (text of Definition 3)
        union          p = 1 - (1 - M / max M) (1 - min(1, gain |g| / max |g|))    (both)
        proportional   p = min(1, c |g| (1 + M / max M)), sum of p = density n
        largest        p = 1 for the density n largest |g| (1 + M / max M), else 0

    The last two operators are not in the paper. g is the update, and n the number of coordinates.
    M, the map, counts how often each coordinate was in V. With the operator ``map``, every V
    counts, as in the paper. With the other operators, only those V count after which the loss fell.
    The reason is the paper's "previously sending the exact gradient will make the loss function
    decrease". A map of zeros is treated as ``density`` everywhere.

    The first three operators do not control how many coordinates are sent. The last two send the
    share ``density`` on average at every step (c as in Wangni et al. 2018, "Gradient
    sparsification", Algorithm 3). The option ``speculative`` adds this share of rarely sent
    coordinates to each new V. ``decay``, which is not in the paper, multiplies M at each step
    before V is counted (1: M is a sum, as in the paper). ``keep="random"`` is a control: a fair
    coin takes the place of the question whether the loss has fallen. With density 1 all
    coordinates are always sent.
    """

    name: ClassVar[str] = "cesgd"
    id: ClassVar[int] = 7
    repeats: ClassVar[bool] = True
    stores: ClassVar[tuple[int, int]] = (5, 8)  # the map M and V; the last loss

    density: float = bounded(0.12, above=0, at_most=1)
    operator: str = bounded("union", one_of=OPERATORS)
    gain: float = bounded(1.5, at_least=0)
    speculative: float = bounded(0.002, at_least=0, at_most=1)
    decay: float = bounded(1.0, at_least=0, at_most=1)
    keep: str = bounded("loss", one_of=KEEPS)
    scope: str = bounded("tensor", one_of=SCOPES)

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Select the entries of V: the last V if the loss fell, otherwise a new V."""
        memory, size = step.memory, len(update)
        first, better = "map" not in memory, fallen(step)
        if self.keep == "random":
            better = not first and bool(step.generator.random() < 0.5)
        weights = get_or_zeros(memory, "map", size, np.float32)
        sent = get_or_zeros(memory, "sent", size, np.bool_)
        if not better:
            chances = workspace("cesgd", size, np.float32)
            if first:
                chances.fill(self.density)
            else:
                self._chances(update, weights, step.layout, chances)
            np.less(step.generator.random(size, dtype=np.float32), chances, out=sent)
            if not first:
                self._speculate(weights, step)
        if self.decay != 1:
            weights *= np.float32(self.decay)
        if better or self.operator == "map":
            weights += sent
        indices = np.flatnonzero(sent).astype(np.uint32)
        return Selection(indices, update[indices], better)

    def _chances(self, update: Vector, weights: Vector, layout: Layout, out: Vector) -> None:
        """Write the probability p that each entry is in the new V to ``out``."""
        for start, stop in pairwise(layout.offsets if self.scope == "tensor" else [0, len(out)]):
            if stop > start and self.density < 1:
                here = slice(start, stop)
                self._chances_of(update[here], weights[here], out[here])
            else:
                out[start:stop] = 1

    def _chances_of(self, update: Vector, weights: Vector, p: Vector) -> None:
        top = weights.max()
        seen = weights / top if top else np.full_like(weights, self.density)
        if self.operator == "map":
            p[:] = seen
            return
        np.abs(update, out=p)
        if highest := float(p.max()):
            # Values are not multiplied by 1 / highest, which overflows for the smallest magnitudes.
            p /= np.float32(highest)
        if self.operator == "proportional":
            p *= 1 + seen
            _scale_to(p, self.density * len(p))
        if self.operator == "largest":
            p *= 1 + seen
            top = largest(p, count(self.density, len(p)))
            p.fill(0)
            p[top] = 1
        if self.operator == "union":
            p *= np.float32(self.gain)
            np.minimum(p, 1, out=p)
            p[:] = 1 - (1 - seen) * (1 - p)

    def _speculate(self, weights: Vector, step: StepContext) -> None:
        """Draw random entries, and add those of them that were sent least often to V."""
        size = len(weights)
        wanted = int(self.speculative * size)
        drawn = uniform(size, min(size, 4 * wanted), step.generator)
        if wanted:
            seldom = np.argpartition(weights[drawn], wanted - 1)[:wanted]
            step.memory["sent"][drawn[seldom]] = True


def _scale_to(weights: Vector, total: float) -> None:
    """Convert (n,) weights w in place to probabilities min(1, c w) with the sum ``total``.

    Each pass scales the weights below 1 to the remaining sum, and fixes the weights that reach 1.
    The number of fixed weights never decreases, so the loop ends, usually after a few passes.
    """
    free, left = np.ones(len(weights), dtype=np.bool_), total
    while (mass := float(weights.sum(where=free))) > 0 and left > 0:
        weights *= np.float32(left / mass)
        over = free & (weights >= 1)
        if not over.any():
            break
        free &= ~over
        left = total - (len(weights) - np.count_nonzero(free))
    weights[~free] = 1
