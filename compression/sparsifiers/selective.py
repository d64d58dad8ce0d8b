"""Selective SGD (Shokri & Shmatikov 2015): sends some entries and discards the others."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Indices, Selection, Sparsifier, StepContext, Vector
from ..per_tensor import SCOPES, count, largest_in, random_in
from ..registry import register
from ..selection import above, uniform
from ..validation import bounded


@register("sparsifier")
@dataclass(frozen=True)
class Selective(Sparsifier):
    """Sends the share ``density`` of the update's entries, and discards the other entries.

    Shokri & Shmatikov 2015, "Privacy-preserving deep learning", section 5.2. ``pick="largest"``
    sends the entries of largest magnitude. ``pick="random"`` draws among the entries whose
    magnitude exceeds ``threshold`` (the paper's gamma; 0: among all entries). ``scope="global"``
    selects from the whole model, as in the paper. ``scope="tensor"`` with ``pick="largest"`` is
    AdaComp's selection (Algorithm 1), the floor(c n) largest of each tensor, at least 1.
    """

    name: ClassVar[str] = "selective"
    id: ClassVar[int] = 5

    density: float = bounded(0.01, above=0, at_most=1)
    scope: str = bounded("global", one_of=SCOPES)
    pick: str = bounded("largest", one_of=("largest", "random"))
    threshold: float = bounded(0.0, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold and (self.pick, self.scope) != ("random", "global"):
            raise ValueError("option threshold of selective goes with pick random and scope global")

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Return the largest entries of the update, or random ones."""
        indices = self._choose(update, step)
        return Selection(indices, update[indices])

    def _choose(self, update: Vector, step: StepContext) -> Indices:
        if self.pick == "largest":
            return largest_in(update, step.layout, self.density, self.scope)
        generator = step.generator
        if not self.threshold:
            return random_in(step.layout, self.density, self.scope, generator)
        candidates = above(update, self.threshold)
        wanted = min(count(self.density, len(update)), len(candidates))
        return candidates[uniform(len(candidates), wanted, generator)]
