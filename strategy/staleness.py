"""Staleness policies of asynchronous servers: the factor of an update made from an older model.

An update's staleness is the number of server steps between the sending of the model and the arrival
of the update. It is 0 if the server took no step in between. A step applies one update, or several
updates if the server has a buffer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgewire.compression.base import Indices, Vector

Counts = NDArray[np.uint32]


@dataclass
class Counted:
    """The state of the staleness policy `PerParameter`; empty for other policies.

    `counts`: the number of steps that changed each parameter, uint32 (n,).
    """

    counts: Counts = field(default_factory=lambda: np.zeros(0, np.uint32))


class Staleness(ABC):
    """Base class of staleness policies: a factor for each update, or for each of its entries.

    The server calls `seen` when it sends a model, and stores the result until the node replies. It
    then passes the result to `factor` with the update.
    """

    def start(self, size: int, state: Counted) -> None:  # noqa: B027 (most keep nothing)
        """Begin with a model of `size` entries, or resume with the counts in `state`."""

    def seen(self) -> Counts | None:
        """Return what `factor` must know later about this moment; None if it needs nothing."""
        return None

    @abstractmethod
    def factor(
        self, staleness: int, seen: Counts | None, indices: Indices | None
    ) -> Vector | np.float32:
        """Return the factor of an update's values: float32 (k,), or one number for all values.

        `staleness`: the update's staleness. `seen`: the result of `seen` when the model was sent.
        `indices`: the strictly increasing indices of the k values; None: every entry.
        """

    def applied(self, indices: Indices | None) -> None:  # noqa: B027
        """Record that a step has changed the entries at `indices`; None: every entry."""


class Ignored(Staleness):
    """The factor 1 for all updates, however old (Hogwild, Recht et al. 2011)."""

    def factor(self, staleness: int, seen: Counts | None, indices: Indices | None) -> np.float32:
        """Return 1."""
        return np.float32(1)


class Global(Staleness):
    """1 / staleness for the whole update (Zhang et al. 2016, "Staleness-aware async-SGD", eq. 6).

    AdaComp's paper uses this factor in two baselines: ASGD, and Comp-ASGD with compressed updates.
    """

    def factor(self, staleness: int, seen: Counts | None, indices: Indices | None) -> np.float32:
        """Return 1 / max(staleness, 1)."""
        return np.float32(1 / max(staleness, 1))


class Polynomial(Staleness):
    """(1 + staleness)^-a (Xie, Koyejo, Gupta 2019, "Asynchronous federated optimization", 5.2)."""

    def __init__(self, a: float = 0.5) -> None:
        if not a >= 0:
            raise ValueError(f"a must be at least 0, not {a:g}")
        self.a = a

    def factor(self, staleness: int, seen: Counts | None, indices: Indices | None) -> np.float32:
        """Return (1 + staleness)^-a."""
        return np.float32((1 + staleness) ** -self.a)


class PerParameter(Staleness):
    """1 / staleness of each parameter, where the staleness counts only steps that changed it.

    AdaComp (Hardy, Le Merrer, Sericola 2017), equations 3 to 5. C[i] counts the steps whose updates
    had an entry i. An entry with the value 0 is counted too, although equation 3 does not count
    zeros. Let C' be C at the time when the server sent the model to the node. Then the staleness of
    the node's update is C[indices] - C'[indices].

    The server stores a copy of C for each message that has no reply yet. Messages that are sent
    between two steps share one copy.
    """

    def start(self, size: int, state: Counted) -> None:
        """Begin with counts of 0, or resume with the counts in `state`."""
        self._state = state
        self._copy: Counts | None = None  # of the counts since the last step
        if not len(state.counts):
            state.counts = np.zeros(size, dtype=np.uint32)

    def seen(self) -> Counts:
        """Return a copy of the current counts."""
        if self._copy is None:
            self._copy = self._state.counts.copy()
        return self._copy

    def factor(self, staleness: int, seen: Counts | None, indices: Indices | None) -> Vector:
        """Return 1 / max(staleness of the entry, 1)."""
        assert seen is not None
        at = slice(None) if indices is None else indices
        own: Vector = np.maximum(self._state.counts[at] - seen[at], 1).astype(np.float32)
        return np.divide(np.float32(1), own, out=own)

    def applied(self, indices: Indices | None) -> None:
        """Count a step."""
        self._state.counts[slice(None) if indices is None else indices] += np.uint32(1)
        self._copy = None
