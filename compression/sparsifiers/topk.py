"""The largest entries, the rest kept for later."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Indices, ResidualSparsifier, SparsifyContext, Vector
from ..per_tensor import SCOPES, largest_in
from ..registry import register
from ..validation import expect_one_of, expect_share


@register("sparsifier")
@dataclass(frozen=True)
class TopK(ResidualSparsifier):
    """Send exactly the ``density`` of largest magnitude of residual + update.

    Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory", Algorithm 1 (Mem-SGD) with its
    top-k operator (Definition 2.1). ``scope``: of the whole model ("global"), or of each tensor, at
    least 1 ("tensor"). Ties go to the lower index.
    """

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 1

    density: float = 0.01
    scope: str = "global"

    def __post_init__(self) -> None:
        expect_share(self.name, "density", self.density)
        expect_one_of(self.name, "scope", self.scope, SCOPES)

    def choose(self, given: Vector, step: SparsifyContext) -> Indices:
        """Return the largest."""
        return largest_in(given, step.layout, self.density, self.scope)
