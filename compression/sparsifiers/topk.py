"""Top-k: sends the largest entries and stores the others (Stich, Cordonnier, Jaggi 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Indices, ResidualSparsifier, SparsifyContext, Vector
from ..per_tensor import SCOPES, largest_in
from ..registry import register
from ..validation import expect_at_least, expect_one_of, expect_share


WARMUPS = ("constant", "exponential")


@register("sparsifier")
@dataclass(frozen=True)
class TopK(ResidualSparsifier):
    """Sends the largest entries of residual + update; their share is exactly ``density``.

    Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory", Algorithm 1 (Mem-SGD) with the
    top-k operator (Definition 2.1). ``scope="global"`` sends the share of the whole model.
    ``scope="tensor"`` sends the share of each tensor, at least 1 entry. Among equal magnitudes, the
    lower index is sent.

    ``warmup_density``: the share in the first ``warmup_steps`` updates, when the model changes
    fast. With ``warmup="constant"`` they all have this share. With ``warmup="exponential"`` the
    share falls from there to ``density`` by the same factor with each update. ``DGC`` has a warm-up
    for the same purpose, which is exponential too (Lin et al. 2018, section 3.3).
    """

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 1

    density: float = 0.01
    scope: str = "global"
    warmup_density: float = 0.04
    warmup_steps: int = 0
    warmup: str = "constant"

    def __post_init__(self) -> None:
        expect_share(self.name, "density", self.density)
        expect_one_of(self.name, "scope", self.scope, SCOPES)
        expect_share(self.name, "warmup_density", self.warmup_density)
        expect_at_least(self.name, "warmup_steps", self.warmup_steps, 0)
        expect_one_of(self.name, "warmup", self.warmup, WARMUPS)

    def choose(self, given: Vector, step: SparsifyContext) -> Indices:
        """Return the indices of the entries with the largest magnitudes."""
        return largest_in(given, step.layout, self._density(step.number), self.scope)

    def _density(self, number: int) -> float:
        """Return the share of the entries that update ``number`` sends, from 1 (0: unknown)."""
        if not 0 < number <= self.warmup_steps:
            return self.density
        if self.warmup == "constant":
            return self.warmup_density
        done = (number - 1) / self.warmup_steps
        return float(self.warmup_density ** (1 - done) * self.density**done)
