"""EF21 with momentum: sends the largest entries of what the server's estimate lacks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import StepContext, Vector, get_or_zeros
from ..registry import register
from ..validation import bounded
from .topk import TopK


@register("sparsifier")
@dataclass(frozen=True)
class EF21(TopK):
    """Sends the largest entries of v - h; v is the node's momentum, h the sum of all it has sent.

    Richtarik, Sokolov, Fatkhullin 2021, "EF21", Algorithm 2, and Fatkhullin, Tyurin, Richtarik
    2023, "Momentum provably improves error feedback!", Algorithm 1 (EF21-SGDM): v = (1 - ``eta``) v
    + ``eta`` g, and h = h + sent. With ``eta`` = 1 it is EF21. The server's estimate of the mean
    update is the sum of all that it has received (``strategy/optimizer=ef21``). The residual holds
    v - h, so v's change is added to it. v and h are 0 at first, so the first payload is as sparse
    as the others. The options of `TopK` hold here too.
    """

    name: ClassVar[str] = "ef21"
    id: ClassVar[int] = 9
    incremental: ClassVar[bool] = True
    stores: ClassVar[tuple[int, int]] = (8, 0)  # v - h and v

    eta: float = bounded(0.1, above=0, at_most=1)

    def accumulate(self, update: Vector, step: StepContext) -> Vector:
        """Change the momentum v, add its change to v - h, and return v - h, float32 (n,)."""
        momentum = get_or_zeros(step.memory, "momentum", len(update), np.float32)
        change = update - momentum
        change *= np.float32(self.eta)
        momentum += change
        return super().accumulate(change, step)
