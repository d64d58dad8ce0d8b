"""Fixed threshold (Strom 2015): sends the entries above a threshold and stores the others."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Indices, ResidualSparsifier, StepContext, Vector
from ..registry import register
from ..selection import above
from ..validation import bounded


@register("sparsifier")
@dataclass(frozen=True)
class Threshold(ResidualSparsifier):
    """Sends the entries of residual + update whose magnitude exceeds a fixed ``threshold``.

    Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing", Algorithm
    1. ``sent="tau"`` sends the threshold with the entry's sign, and stores the difference. Such
    values need only one bit each: `quantizer=sign`, or `ternary` with clip 0, encodes them without
    loss. ``sent="value"`` sends the whole entry. The residual is 0 at the first step.
    """

    name: ClassVar[str] = "threshold"
    id: ClassVar[int] = 2

    threshold: float = bounded(1e-3, at_least=0)
    sent: str = bounded("tau", one_of=("tau", "value"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold and self.sent == "tau":
            raise ValueError(
                "option threshold of threshold must be above 0 where it is what is sent"
            )

    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices of the entries whose magnitude is above the threshold."""
        return above(given, self.threshold)

    def take(self, given: Vector, indices: Indices) -> Vector:
        """Return the values to send, and subtract them from ``given``, the residual.

        With ``sent="tau"`` a value is the threshold with the entry's sign. With ``sent="value"`` it
        is the entry.
        """
        if self.sent == "value":
            return super().take(given, indices)
        values = np.copysign(np.float32(self.threshold), given[indices])
        given[indices] -= values
        return values
