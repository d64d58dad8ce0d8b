"""Energy: sends the fewest entries that hold a share of the energy, the sum of squares."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Indices, ResidualSparsifier, StepContext, Vector
from ..registry import register
from ..sampling import BLOCK
from ..selection import MOST, bits_of, largest
from ..validation import bounded

WORDS = {"low": 0.1, "medium": 0.3, "high": 1.0}  # of `fidelity`
# The upper 16 bits of a finite magnitude are its class. A class counts as its middle, squared.
_CLASSES = 0x7F80
_SQUARES = (np.arange(_CLASSES, dtype=np.int32) << 16 | 1 << 15).view(np.float32).astype(float) ** 2
_SQUARES[0] = 0.0


def _factor(fidelity: str) -> float:
    """Return the number that a ``fidelity`` stands for; raises ValueError for another text."""
    try:
        factor = WORDS.get(fidelity) or float(fidelity)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        words = ", ".join(WORDS)
        raise ValueError(
            f"option fidelity of energy must be a number above 0 or one of {words}, not "
            f"{fidelity!r}"
        )
    return factor


@register("sparsifier")
@dataclass(frozen=True)
class Energy(ResidualSparsifier):
    """Sends the fewest entries of residual + update that hold a share of their sum of squares.

    So the number of entries follows the update: a few entries hold most of one update, and another
    needs many. ``energy``: the share. ``last_energy``: the share in the last ``last_share`` of all
    ``total_steps`` updates (0: it is never used). No later update sends what the last ones leave
    out.

    ``fidelity``: a number, or one of the words low (0.1), medium (0.3) and high (1). The odds of
    both shares, energy : (1 - energy), are multiplied by this number to the power of
    ``fidelity_power``. With 1 the shares are as they are given. More of it sends more entries.

    The magnitudes are counted in classes of a relative width of 1/128, in which all count as equal.
    So the share is met up to about one percent. The values before they are quantized meet it.
    """

    name: ClassVar[str] = "energy"
    id: ClassVar[int] = 10
    scalable: ClassVar[bool] = True

    energy: float = bounded(0.5, above=0, at_most=1)
    last_energy: float = bounded(0.8, above=0, at_most=1)
    last_share: float = bounded(0.25, at_least=0, below=1)
    total_steps: int = bounded(0, at_least=0)
    fidelity: str = "high"
    fidelity_power: float = bounded(1.0, at_least=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _factor(self.fidelity)

    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices of the largest entries, so many that they hold the share."""
        last = 0 < self.total_steps * (1 - self.last_share) < step.number
        share = self.last_energy if last else self.energy
        if share < 1:
            odds = _factor(self.fidelity) ** self.fidelity_power * share / (1 - share)
            share = 1 - 1 / (1 + odds)  # 1 for odds beyond float64
        count = round(fewest(given, share) * step.density_factor)
        return largest(given, min(count, len(given)))


def fewest(values: Vector, share: float) -> int:
    """Return how many of the largest magnitudes hold the ``share`` of the energy, up to a class.

    ``values``: (n,) finite float32. For a share of 1 it is the number of values that are not 0. The
    energies are added in float64, and no sum can overflow. Magnitudes below 1e-40 count as 0.
    """
    if share == 1:
        return int(np.count_nonzero(values))
    bits, counts = bits_of(values, 0), np.zeros(_CLASSES, dtype=np.int64)
    for start in range(0, len(bits), BLOCK):
        here = (bits[start : start + BLOCK] & MOST) >> 16
        counts += np.bincount(here, minlength=_CLASSES)
    used = np.flatnonzero(counts)[::-1]  # from the largest magnitudes on
    counts, energies = counts[used], counts[used] * _SQUARES[used]
    held = np.cumsum(energies)
    wanted = share * held[-1] if len(held) else 0.0
    if not wanted:
        return 0
    at = int(np.searchsorted(held, wanted))
    inside = (wanted - (held[at] - energies[at])) / energies[at]
    count: int = int(counts[:at].sum()) + math.ceil(inside * int(counts[at]))
    return count
