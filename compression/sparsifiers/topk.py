"""Top-k: sends the largest entries and stores the others (Stich, Cordonnier, Jaggi 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Indices, ResidualSparsifier, SparsifyContext, Vector
from ..per_tensor import SCOPES, largest_in
from ..registry import register
from ..validation import expect_one_of, expect_share


@register("sparsifier")
@dataclass(frozen=True)
class TopK(ResidualSparsifier):
    """Sends the largest entries of residual + update; their share is exactly ``density``.

    Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory", Algorithm 1 (Mem-SGD) with the
    top-k operator (Definition 2.1). ``scope="global"`` sends the share of the whole model.
    ``scope="tensor"`` sends the share of each tensor, at least 1 entry. Among equal magnitudes, the
    lower index is sent.
    """

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 1

    density: float = 0.01
    scope: str = "global"

    def __post_init__(self) -> None:
        expect_share(self.name, "density", self.density)
        expect_one_of(self.name, "scope", self.scope, SCOPES)

    def choose(self, given: Vector, step: SparsifyContext) -> Indices:
        """Return the indices of the entries with the largest magnitudes."""
        return largest_in(given, step.layout, self.density, self.scope)
