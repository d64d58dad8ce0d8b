"""What the screens of updates share: the norm of an update, and the median of the nodes' values."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..records import Vector

LEAST = 3  # the fewest nodes from which a usual norm, change or weight is computed
REACH = 10.0  # while the usual norm is unknown: the largest norm, in units of the model's norm


def norm_of(*parts: Vector) -> float:
    """Return the L2 norm of the concatenated vectors; infinity if its square exceeds float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(sum(float(np.dot(part, part)) for part in parts))


def median_of(values: Iterable[float]) -> float:
    """Return the median of numbers; of two middle values the lower; 0 without numbers."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if found else 0.0
