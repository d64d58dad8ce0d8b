"""eSGD: finds important coordinates by the change of the loss, and also sends large residuals."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Indices, Selection, Sparsifier, StepContext, Vector, fallen, get_or_zeros
from ..buffers import workspace
from ..per_tensor import count
from ..registry import register
from ..selection import above, largest, uniform, weighted
from ..validation import bounded


@register("sparsifier")
@dataclass(frozen=True)
class ESGD(Sparsifier):
    """Sends entries that often reduced the loss when they were sent, and large residuals.

    Together they are the share 1 - ``drop`` of all entries.

    Tao & Li 2018, "eSGD: Communication efficient distributed deep learning on the edge", Algorithms
    1 and 2. While the loss falls, the same set S of coordinates is sent. The hidden weights H of
    these coordinates increase by 1. Otherwise a new set S is drawn with the weights H + 1. Q is
    the set of unsent coordinates whose residual exceeds the mean |g|. The coordinates in Q, the
    largest first, replace those coordinates of S that have the lowest H. They replace at most the
    share ``cap`` of S.

    ``residual="momentum"``: r = beta r + g, and the values sent are r. So values are lost only by
    the decay beta. ``residual="ema"`` is Algorithm 2 as written: r = beta r + (1 - beta) g. The
    values sent are r for coordinates in Q and g for the others. Afterwards r is 0 at all sent
    coordinates. The paper's "sum g / d" (line 3) is implemented as the mean of |g|, because the
    signed mean is near 0.
    """

    name: ClassVar[str] = "esgd"
    id: ClassVar[int] = 6
    repeats: ClassVar[bool] = True
    stores: ClassVar[tuple[int, int]] = (9, 8)  # residual, H and S; the last loss

    drop: float = bounded(0.5, at_least=0, below=1)
    residual: str = bounded("momentum", one_of=("momentum", "ema"))
    beta: float = bounded(0.9, at_least=0, at_most=1)
    cap: float = bounded(0.5, at_least=0, at_most=1)

    @property
    def residual_key(self) -> str | None:
        """Name of the residual, float32 (n,)."""
        return "residual"

    @property
    def gain_of_momentum(self) -> float:
        """How much of an update is sent if it is sent a step late."""
        return self.beta if self.residual == "momentum" else 1 - self.beta

    def accumulate(self, update: Vector, step: StepContext) -> Vector:
        """Add the update g to the decayed residual r, and return the new r, (n,)."""
        residual = get_or_zeros(step.memory, "residual", len(update), np.float32)
        residual *= np.float32(self.beta)
        if self.residual == "momentum":
            residual += update
        else:
            scaled = workspace("esgd", len(update), np.float32)
            residual += np.multiply(update, np.float32(1 - self.beta), out=scaled)
        return residual

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Select the set S, after large residuals have replaced its entries with the lowest H.

        H counts how often the loss fell after an entry was sent.
        """
        memory, generator = step.memory, step.generator
        given = self.accumulate(update, step)
        chosen, same = self._set(step, len(update))
        large = self._large(given, update, chosen)
        if len(large):
            hidden = memory["hidden"][chosen] + generator.random(len(chosen))  # ties: random
            lowest = hidden.argpartition(len(large) - 1)[: len(large)]
            chosen, same = np.sort(np.concatenate([np.delete(chosen, lowest), large])), False
        if not same:
            memory["sent"].fill(False)
            memory["sent"][chosen] = True
        values = given[chosen]
        if self.residual == "ema":
            kept = ~np.isin(chosen, large, assume_unique=True)
            values[kept] = update[chosen[kept]]
        given[chosen] = 0
        return Selection(chosen, values, same)

    def _set(self, step: StepContext, size: int) -> tuple[Indices, bool]:
        """Return the set S of entries to send, and whether it is the same as in the last step."""
        memory, generator = step.memory, step.generator
        first, better = "sent" not in memory, fallen(step)
        sent = get_or_zeros(memory, "sent", size, np.bool_)
        hidden = get_or_zeros(memory, "hidden", size, np.uint32)
        wanted = count(1 - self.drop, size)
        if first:
            return uniform(size, wanted, generator), False
        if better:
            chosen = np.flatnonzero(sent).astype(np.uint32)
            hidden[chosen] += 1
            return chosen, True
        weights = workspace("esgd", size, np.float32)
        np.add(hidden, 1, out=weights, casting="unsafe")
        return weighted(weights, wanted, generator), False

    def _large(self, given: Vector, update: Vector, chosen: Indices) -> Indices:
        """Return Q: unsent coordinates whose residual exceeds the mean |g|, the largest first."""
        size = len(update)
        magnitudes = np.abs(update, out=workspace("esgd", size, np.float32))
        mean = float(magnitudes.mean()) if size else 0.0
        np.abs(given, out=magnitudes)
        magnitudes[chosen] = 0
        found = above(magnitudes, mean)
        most = int(self.cap * len(chosen))
        return found if len(found) <= most else found[largest(magnitudes[found], most)]
