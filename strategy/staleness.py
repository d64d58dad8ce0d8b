"""How much an update counts that was made from an older model: policies of asynchronous servers.

An update's staleness is the number of steps (of one update each, unless they are buffered) between
the moment its node was sent the model and the moment it arrives: 0 if nobody came in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.base import Indices, Vector

Counts = NDArray[np.uint32]
SHARE = 32  # a copy costs about what going through n / 32 entries does
STEP_COST = 512  # and a step, however few its entries are, what so many do


class Seen(NamedTuple):
    """The counts at some moment: those of a copy, and the first `steps` of what came after it."""

    copy: NDArray[np.uint32]
    log: list[NDArray[np.uint32] | None]  # longer by now, maybe
    steps: int


@dataclass
class Counted:
    """What `PerParameter` has counted: steps by entry, uint32 (n,); what is seen now; how much was
    logged since the last copy. Empty for the others.
    """

    counts: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    seen: Seen = field(default_factory=lambda: Seen(np.zeros(0, np.uint32), [], 0))
    logged: int = 0


class Staleness(ABC):
    """A factor for each update, or for each of its entries.

    `seen` is what the server remembers of the moment at which it sends a model; it goes back to
    `factor` with the update that was made from this model. Memory is that of messages under way.
    """

    def start(self, size: int, state: Counted) -> None:  # noqa: B027 (most keep nothing)
        """Begin with a model of `size` entries, or go on with what was counted."""

    def seen(self) -> Seen | None:
        """Return what is to be remembered of now; what it says is never changed later."""
        return None

    @abstractmethod
    def factor(
        self, staleness: int, seen: Seen | None, indices: Indices | None
    ) -> Vector | np.float32:
        """Return by what to multiply an update's values, float32 (k,) or one for all.

        `indices`: its k entries, strictly increasing; None: every entry.
        """

    def applied(self, indices: Indices | None) -> None:  # noqa: B027
        """Note that a step with these entries is in the model now."""


class Ignored(Staleness):
    """Old updates count like new ones (Hogwild's rule, Recht et al. 2011)."""

    def factor(self, staleness: int, seen: Seen | None, indices: Indices | None) -> np.float32:
        """Return 1."""
        return np.float32(1)


class Global(Staleness):
    """1 / staleness for the whole update (Zhang et al. 2016, "Staleness-aware async-SGD", eq. 6).

    AdaComp's paper compares with it as ASGD and, with compressed updates, Comp-ASGD.
    """

    def factor(self, staleness: int, seen: Seen | None, indices: Indices | None) -> np.float32:
        """Return 1 / max(staleness, 1)."""
        return np.float32(1 / max(staleness, 1))


class Polynomial(Staleness):
    """(1 + staleness)^-a (Xie, Koyejo, Gupta 2019, "Asynchronous federated optimization", 5.2)."""

    def __init__(self, a: float = 0.5) -> None:
        if not a >= 0:
            raise ValueError(f"a must be at least 0, not {a:g}")
        self.a = a

    def factor(self, staleness: int, seen: Seen | None, indices: Indices | None) -> np.float32:
        """Return (1 + staleness)^-a."""
        return np.float32((1 + staleness) ** -self.a)


class PerParameter(Staleness):
    """1 / staleness of each parameter alone: how many steps have touched it in between.

    AdaComp (Hardy, Le Merrer, Sericola 2017), equations 3 to 5. C[i] counts the steps whose updates
    had an entry i, be it 0 (equation 3 leaves zeros out); a node is sent the model at C', and the
    staleness of its update is C[indices] - C'[indices]. C is copied only now and then, when going
    through the updates since the last copy would cost more; C' is such a copy and the updates
    between it and the sending, which are gone through again. So the cost is that of the entries in
    a few updates, and memory that of the messages under way: a copy, and the updates logged after
    it, go with the last message that needs them.
    """

    def start(self, size: int, state: Counted) -> None:
        """Begin with counts of 0, or go on."""
        self._state = state
        self._touched: Counts = np.zeros(size, dtype=np.uint32)  # 0 but within `staleness`
        if not len(state.counts):
            state.counts = np.zeros(size, dtype=np.uint32)
            self._copy()

    def _copy(self) -> None:
        self._state.seen, self._state.logged = Seen(self._state.counts.copy(), [], 0), 0

    def seen(self) -> Seen:
        """Return what the counts are now."""
        return self._state.seen

    def staleness(self, seen: Seen, indices: Indices | None) -> Counts:
        """Return how many steps have touched each entry since, uint32 (k,)."""
        at = slice(None) if indices is None else indices
        stale: Counts = self._state.counts[at] - seen.copy[at]
        before = seen.log[: seen.steps]  # these were in the model that was sent
        sparse = [step for step in before if step is not None]
        for step in sparse:
            self._touched[step] += np.uint32(1)
        stale -= self._touched[at]
        for step in sparse:
            self._touched[step] = 0
        stale -= np.uint32(len(before) - len(sparse))
        return stale

    def factor(self, staleness: int, seen: Seen | None, indices: Indices | None) -> Vector:
        """Return 1 / max(staleness of the entry, 1)."""
        assert seen is not None
        own = np.maximum(self.staleness(seen, indices), 1).astype(np.float32)
        return np.divide(np.float32(1), own, out=own)

    def applied(self, indices: Indices | None) -> None:
        """Count; the array of indices is kept and must not change any more."""
        state = self._state
        state.counts[slice(None) if indices is None else indices] += np.uint32(1)
        copy, log, steps = state.seen
        state.logged += STEP_COST + (0 if indices is None else len(indices))
        if state.logged * SHARE > len(state.counts):
            self._copy()
        else:
            log.append(indices)
            state.seen = Seen(copy, log, steps + 1)
