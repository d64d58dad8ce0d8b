"""Energy: sends the fewest entries that hold a share of the energy, the sum of squares."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Indices, ResidualSparsifier, SparsifyContext, Vector
from ..registry import register
from ..selection import MOST, bits_of, largest
from ..validation import expect_at_least, expect_below_one, expect_between, expect_share

WORDS = {"low": 0.1, "medium": 0.35, "high": 1.0}  # of `fidelity`
_UNUSED = 15  # low bits of a magnitude that its class leaves out; 8 bits of the mantissa stay
_WIDEST = 1 << 20  # entries that are squared at a time, which bounds the memory


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
    ``total_steps`` updates (0: there are no such updates). What these leave out has no later
    update to go with, and so the model would lack it.

    ``fidelity``: a number, or one of the words low (0.1), medium (0.35) and high (1). The odds of
    both shares, energy : (1 - energy), are multiplied by this number to the power of
    ``fidelity_power``. With 1 the shares are as they are given. More of it sends more entries.

    The magnitudes are counted in classes of a relative width of 1/256. In the last class that is
    needed, all magnitudes count as equal. So the share is met up to a part of that class. It is
    met by the values before they are quantized.
    """

    name: ClassVar[str] = "energy"
    id: ClassVar[int] = 10
    scalable: ClassVar[bool] = True

    energy: float = 0.5
    last_energy: float = 0.8
    last_share: float = 0.25
    total_steps: int = 0
    fidelity: str = "high"
    fidelity_power: float = 1.0

    def __post_init__(self) -> None:
        expect_share(self.name, "energy", self.energy)
        expect_share(self.name, "last_energy", self.last_energy)
        expect_below_one(self.name, "last_share", self.last_share)
        expect_at_least(self.name, "total_steps", self.total_steps, 0)
        expect_between(self.name, "fidelity_power", self.fidelity_power, 0, 1)
        _factor(self.fidelity)

    def choose(self, given: Vector, step: SparsifyContext) -> Indices:
        """Return the indices of the largest entries, so many that they hold the share."""
        last = 0 < self.total_steps * (1 - self.last_share) < step.number
        share = self.last_energy if last else self.energy
        if share < 1:
            odds = _factor(self.fidelity) ** self.fidelity_power * share / (1 - share)
            share = odds / (1 + odds)
        count = round(fewest(given, share) * step.density_factor)
        return largest(given, min(count, len(given)))


def fewest(values: Vector, share: float) -> int:
    """Return how many of the largest magnitudes hold the ``share`` of the energy, up to a class.

    ``values``: (n,) finite float32. The result is 0 if all of them are 0, and for a share of 1 it is
    the number of those that are not 0. The energies are added in float64, and no sum can overflow.
    """
    if share == 1:
        return int(np.count_nonzero(values))
    bits = bits_of(values, 0)
    energies, counts = np.zeros(1 << 16), np.zeros(1 << 16, dtype=np.int64)
    for start in range(0, len(values), _WIDEST):
        here = (bits[start : start + _WIDEST] & MOST) >> _UNUSED
        squares = values[start : start + _WIDEST].astype(np.float64)
        squares *= squares
        energies += np.bincount(here, squares, minlength=1 << 16)
        counts += np.bincount(here, minlength=1 << 16)
    held = np.cumsum(energies[::-1])  # from the largest class on
    wanted = share * held[-1]
    if not wanted > 0:
        return 0
    at = int(np.searchsorted(held, wanted))
    inside = (wanted - (held[at] - energies[::-1][at])) / energies[::-1][at]
    counts = counts[::-1]
    count: int = int(counts[:at].sum()) + math.ceil(min(inside, 1.0) * int(counts[at]))
    return count
