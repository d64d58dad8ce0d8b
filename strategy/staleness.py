"""How much an update counts that was made from an older model: policies of asynchronous servers.

An update's staleness is the number of steps (of one update each, unless they are buffered) between
the moment its node was sent the model and the moment it arrives: 0 if nobody came in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compression.stages import Indices, Vector

Counts = NDArray[np.uint32]


class Staleness(ABC):
    """A factor for each update, or for each of its entries.

    `seen` is what the server remembers of the moment at which it sends a model; it goes back to
    `factor` with the update that was made from this model. Memory is that of messages under way.
    """

    def start(self, size: int) -> None:  # noqa: B027 (most have nothing to begin with)
        """Begin with a model of `size` entries."""

    def seen(self) -> Any:
        """Return what is to be remembered of now (never changed later)."""
        return None

    @abstractmethod
    def factor(self, staleness: int, seen: Any, indices: Indices | None) -> Vector | np.float32:
        """Return by what to multiply an update's values, float32 (k,) or one for all.

        `indices`: its k entries, strictly increasing; None: every entry.
        """

    def applied(self, indices: Indices | None) -> None:  # noqa: B027
        """Note that a step with these entries is in the model now."""


class Ignored(Staleness):
    """Old updates count like new ones (Hogwild's rule, Recht et al. 2011)."""

    def factor(self, staleness: int, seen: Any, indices: Indices | None) -> np.float32:
        """Return 1."""
        return np.float32(1)


class Global(Staleness):
    """1 / staleness for the whole update (Zhang et al. 2016, "Staleness-aware async-SGD", eq. 6).

    AdaComp's paper compares with it as ASGD and, with compressed updates, Comp-ASGD.
    """

    def factor(self, staleness: int, seen: Any, indices: Indices | None) -> np.float32:
        """Return 1 / max(staleness, 1)."""
        return np.float32(1 / max(staleness, 1))


class Polynomial(Staleness):
    """(1 + staleness)^-a (Xie, Koyejo, Gupta 2019, "Asynchronous federated optimization", 5.2)."""

    def __init__(self, a: float = 0.5) -> None:
        if not a >= 0:
            raise ValueError(f"a must be at least 0, not {a:g}")
        self.a = a

    def factor(self, staleness: int, seen: Any, indices: Indices | None) -> np.float32:
        """Return (1 + staleness)^-a."""
        return np.float32((1 + staleness) ** -self.a)


class PerParameter(Staleness):
    """1 / staleness of each parameter alone: how many steps have touched it in between.

    AdaComp (Hardy, Le Merrer, Sericola 2017), equations 3 to 5. C[i] counts the steps whose updates
    had an entry i, be it 0 (equation 3 leaves zeros out); a node is sent the model when C is
    `seen`, so the staleness is C[indices] - seen[indices], with no history, at the cost of the
    entries in the update. A model that is sent costs a copy of C, as it costs a copy of the model.
    """

    def start(self, size: int) -> None:
        """Begin with counts of 0."""
        self._counts: Counts = np.zeros(size, dtype=np.uint32)
        self._seen: Counts | None = None

    def seen(self) -> Counts:
        """Return a copy of the counts, the same one until an update is applied."""
        if self._seen is None:
            self._seen = self._counts.copy()
        return self._seen

    def staleness(self, seen: Counts, indices: Indices | None) -> Counts:
        """Return how many steps have touched each entry since, uint32 (k,)."""
        if indices is None:
            return self._counts - seen
        return self._counts[indices] - seen[indices]

    def factor(self, staleness: int, seen: Counts, indices: Indices | None) -> Vector:
        """Return 1 / max(staleness of the entry, 1)."""
        own = np.maximum(self.staleness(seen, indices), 1).astype(np.float32)
        return np.divide(np.float32(1), own, out=own)

    def applied(self, indices: Indices | None) -> None:
        """Count."""
        self._seen = None
        self._counts[slice(None) if indices is None else indices] += np.uint32(1)
