"""Random-k: sends random entries (Stich, Cordonnier, Jaggi 2018)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Indices, ResidualSparsifier, Selection, StepContext, Vector
from ..layout import Layout
from ..per_tensor import SCOPES, random_in
from ..registry import register
from ..validation import bounded


@register("sparsifier")
@dataclass(frozen=True)
class RandomK(ResidualSparsifier):
    """Sends a share ``density`` of the entries of residual + update, drawn at random at each step.

    Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory", the rand-k operator (Definition
    2.1). With ``rescale=true`` there is no residual. Instead the values sent are multiplied by n /
    k for k of n entries (the paper's equation 3; Konecny et al. 2016, "random mask"). Then their
    expectation is the update, but their variance is large.
    """

    name: ClassVar[str] = "randomk"
    id: ClassVar[int] = 4

    density: float = bounded(0.01, above=0, at_most=1)
    scope: str = bounded("global", one_of=SCOPES)
    rescale: bool = False

    @property
    def contracts(self) -> bool:
        """False with ``rescale``: the error is up to n / k times the update, for k of n entries."""
        return not self.rescale

    @property
    def residual_key(self) -> str | None:
        """Name of the residual, float32 (n,); None with ``rescale``."""
        return None if self.rescale else super().residual_key

    def memory_bytes(self, layout: Layout) -> int:
        """Return four bytes per parameter for the residual; 0 with ``rescale``."""
        return 0 if self.rescale else super().memory_bytes(layout)

    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices of random entries, all equally likely."""
        return random_in(step.layout, self.density, self.scope, step.generator)

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Select random entries of residual + update; with ``rescale``, of the update alone."""
        if not self.rescale:
            return super().select(update, step)
        indices = self.choose(update, step)
        segments = np.searchsorted(indices, step.layout.offsets)
        if self.scope == "global":
            segments = segments[[0, -1]]
        sizes = np.diff(step.layout.offsets if self.scope == "tensor" else [0, len(update)])
        chosen = np.diff(segments)
        factors = np.repeat(sizes / np.maximum(chosen, 1), chosen).astype(np.float32)
        return Selection(indices, update[indices] * factors)
