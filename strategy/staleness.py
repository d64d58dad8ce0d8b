"""Staleness policies of asynchronous servers: the factor of an update made from an older model.

An update's staleness is the number of server steps between sending the model to the node and the
update's arrival: 0 if the server took no step in between. A step applies one update, or with a
buffer several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.base import Indices, Vector

Counts = NDArray[np.uint32]
SHARE = 32  # copying n counts takes about as long as adding at n / 32 logged entries
STEP_COST = 512  # logged entries that take as long as the overhead of one logged step


class Seen(NamedTuple):
    """The counts at some moment: a copy, and the first `steps` entries of the log after it."""

    copy: NDArray[np.uint32]
    log: list[NDArray[np.uint32] | None]  # shared: may have grown since
    steps: int


@dataclass
class Counted:
    """The state of `PerParameter`; empty for other policies.

    `counts`: steps by entry, uint32 (n,). `seen`: the current `Seen`. `logged`: the cost of the log
    since the last copy, in entries.
    """

    counts: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    seen: Seen = field(default_factory=lambda: Seen(np.zeros(0, np.uint32), [], 0))
    logged: int = 0


class Staleness(ABC):
    """A factor for each update, or for each of its entries.

    The server calls `seen` when it sends a model, keeps the result while the message is under way,
    and passes it to `factor` with the update made from that model.
    """

    def start(self, size: int, state: Counted) -> None:  # noqa: B027 (most keep nothing)
        """Begin with a model of `size` entries, or resume with the saved counts."""

    def seen(self) -> Seen | None:
        """Return what to remember of this moment; later steps do not change its meaning."""
        return None

    @abstractmethod
    def factor(
        self, staleness: int, seen: Seen | None, indices: Indices | None
    ) -> Vector | np.float32:
        """Return the factor of an update's values, float32 (k,) or one for all.

        `indices`: its k entries, strictly increasing; None: every entry.
        """

    def applied(self, indices: Indices | None) -> None:  # noqa: B027
        """Note that the model now includes a step with these entries."""


class Ignored(Staleness):
    """Factor 1: old updates count the same as new ones (Hogwild, Recht et al. 2011)."""

    def factor(self, staleness: int, seen: Seen | None, indices: Indices | None) -> np.float32:
        """Return 1."""
        return np.float32(1)


class Global(Staleness):
    """1 / staleness for the whole update (Zhang et al. 2016, "Staleness-aware async-SGD", eq. 6).

    AdaComp's paper uses it in its baselines ASGD and, with compressed updates, Comp-ASGD.
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
    """1 / staleness of each parameter: the number of steps that touched it in between.

    AdaComp (Hardy, Le Merrer, Sericola 2017), equations 3 to 5. C[i] counts the steps whose updates
    had an entry i, even if its value was 0 (equation 3 does not count zeros). If C' is C at the
    moment when the node was sent the model, its update's staleness is C[indices] - C'[indices].

    A copy of C for every message would cost n counts each. Instead this class copies C only when
    going through the updates since the last copy would cost more, and logs the indices of each
    update after it. C' is then a copy plus the logged updates before the sending, which `staleness`
    counts again. The cost of a call is that of the entries in a few updates. Python frees a copy
    and its log with the last message that refers to them.
    """

    def start(self, size: int, state: Counted) -> None:
        """Begin with counts of 0, or resume with the saved counts."""
        self._state = state
        self._touched: Counts = np.zeros(size, dtype=np.uint32)  # all 0 outside of `staleness`
        if not len(state.counts):
            state.counts = np.zeros(size, dtype=np.uint32)
            self._copy()

    def _copy(self) -> None:
        self._state.seen, self._state.logged = Seen(self._state.counts.copy(), [], 0), 0

    def seen(self) -> Seen:
        """Return the counts at this moment."""
        return self._state.seen

    def staleness(self, seen: Seen, indices: Indices | None) -> Counts:
        """Return the number of steps that have touched each entry since `seen`, uint32 (k,)."""
        at = slice(None) if indices is None else indices
        # C - C' at the entries, where C' = copy + the logged steps that the sent model had.
        stale: Counts = self._state.counts[at] - seen.copy[at]
        before = seen.log[: seen.steps]
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
        """Count the step. The log keeps the array `indices`: the caller must not change it."""
        state = self._state
        state.counts[slice(None) if indices is None else indices] += np.uint32(1)
        copy, log, steps = state.seen
        state.logged += STEP_COST + (0 if indices is None else len(indices))
        if state.logged * SHARE > len(state.counts):
            self._copy()
        else:
            log.append(indices)
            state.seen = Seen(copy, log, steps + 1)
