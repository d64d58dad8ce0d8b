"""No sparsification: sends every coordinate."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Selection, Sparsifier, StepContext, Vector
from ..registry import register


@register("sparsifier")
@dataclass(frozen=True)
class Dense(Sparsifier):
    """Sends every entry."""

    name: ClassVar[str] = "dense"
    id: ClassVar[int] = 0
    selects: ClassVar[bool] = False

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Return all entries of the update."""
        return Selection(None, update)
