"""Top-k: sends the largest entries and stores the others (Stich, Cordonnier, Jaggi 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Indices, ResidualSparsifier, StepContext, Vector
from ..per_tensor import SCOPES, largest_in, largest_in_chunks
from ..registry import register
from ..validation import bounded


@register("sparsifier")
@dataclass(frozen=True)
class TopK(ResidualSparsifier):
    """Sends the largest entries of residual + update; their share is exactly ``density``.

    Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory", Algorithm 1 (Mem-SGD) with the
    top-k operator (Definition 2.1). ``scope="global"`` sends the share of the whole model.
    ``scope="tensor"`` sends the share of each tensor, at least 1 entry. ``scope="chunk"`` cuts each
    tensor into chunks of ``chunk_size`` entries and sends the share of each chunk, at least 1
    entry, as SparseLoCo does (Sarfi et al. 2025). Among equal magnitudes, the lower index is sent.

    ``warmup_density``: the share in the first ``warmup_steps`` updates, when the model changes
    fast. ``DGC`` has a warm-up for the same purpose (Lin et al. 2018, section 3.3).
    """

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 1
    scalable: ClassVar[bool] = True

    density: float = bounded(0.01, above=0, at_most=1)
    scope: str = bounded("global", one_of=(*SCOPES, "chunk"))
    chunk_size: int = bounded(4096, at_least=1)
    warmup_density: float = bounded(0.04, above=0, at_most=1)
    warmup_steps: int = bounded(0, at_least=0)

    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices of the entries with the largest magnitudes."""
        warms_up = 0 < step.number <= self.warmup_steps
        density = self.warmup_density if warms_up else self.density
        density = min(density * step.density_factor, 1.0)
        if self.scope == "chunk":
            return largest_in_chunks(given, step.layout, density, self.chunk_size)
        return largest_in(given, step.layout, density, self.scope)
