"""Staleness policies of asynchronous servers: the factor of an update made from an older model.

An update's staleness is the number of server steps between the sending of the model and the arrival
of the update. It is 0 if the server took no step in between. A step applies one update, or several
updates if the server has a buffer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewire.compression.base import Indices, Vector

Counts = NDArray[np.uint32]
SHARE = 32  # copying n counts takes about as long as adding n / SHARE logged entries
STEP_COST = 512  # the overhead of one logged step is as long as adding STEP_COST entries


class Seen(NamedTuple):
    """How many steps had changed each parameter at some time: a copy of the counts, and a log.

    The counts are those in `copy`, plus one for each index in the first `steps` entries of `log`.
    An entry of the log holds the indices that a step has changed; None: all.
    """

    copy: NDArray[np.uint32]
    log: list[NDArray[np.uint32] | None]  # shared with later `Seen`, so it may have more entries
    steps: int


@dataclass
class Counted:
    """The state of the staleness policy `PerParameter`; empty for other policies.

    `counts`: the number of steps that changed each parameter, uint32 (n,). `seen`: these counts as
    a `Seen`. `logged`: how long it takes to add the log to its copy, in entries.
    """

    counts: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    seen: Seen = field(default_factory=lambda: Seen(np.zeros(0, np.uint32), [], 0))
    logged: int = 0


class Staleness(ABC):
    """Base class of staleness policies: a factor for each update, or for each of its entries.

    The server calls `seen` when it sends a model, and stores the result until the node replies. It
    then passes the result to `factor` with the update.
    """

    def start(self, size: int, state: Counted) -> None:  # noqa: B027 (most keep nothing)
        """Begin with a model of `size` entries, or resume with the counts in `state`."""

    def seen(self) -> Seen | None:
        """Return what `factor` must know later about this moment; None if it needs nothing."""
        return None

    @abstractmethod
    def factor(
        self, staleness: int, seen: Seen | None, indices: Indices | None
    ) -> Vector | np.float32:
        """Return the factor of an update's values: float32 (k,), or one number for all values.

        `staleness`: the update's staleness. `seen`: the result of `seen` when the model was sent.
        `indices`: the strictly increasing indices of the k values; None: every entry.
        """

    def applied(self, indices: Indices | None) -> None:  # noqa: B027
        """Record that a step has changed the entries at `indices`; None: every entry."""


class Ignored(Staleness):
    """The factor 1 for all updates, however old (Hogwild, Recht et al. 2011)."""

    def factor(self, staleness: int, seen: Seen | None, indices: Indices | None) -> np.float32:
        """Return 1."""
        return np.float32(1)


class Global(Staleness):
    """1 / staleness for the whole update (Zhang et al. 2016, "Staleness-aware async-SGD", eq. 6).

    AdaComp's paper uses this factor in two baselines: ASGD, and Comp-ASGD with compressed updates.
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
    """1 / staleness of each parameter, where the staleness counts only steps that changed it.

    AdaComp (Hardy, Le Merrer, Sericola 2017), equations 3 to 5. C[i] counts the steps whose updates
    had an entry i. An entry with the value 0 is counted too, although equation 3 does not count
    zeros. Let C' be C at the time when the server sent the model to the node. Then the staleness of
    the node's update is C[indices] - C'[indices].

    A copy of C for every message would need n counts per message. Instead, this class logs the
    indices of each update after the last copy. It makes a new copy only when counting the logged
    updates would cost more. So C' is a copy plus those logged updates that came before the sending;
    `staleness` counts them again. A call takes as long as adding the entries of a few updates.
    Python deletes a copy and its log with the last message that refers to them.
    """

    def start(self, size: int, state: Counted) -> None:
        """Begin with counts of 0, or resume with the counts in `state`."""
        self._state = state
        self._touched: Counts = np.zeros(size, dtype=np.uint32)  # all 0 except inside `staleness`
        if not len(state.counts):
            state.counts = np.zeros(size, dtype=np.uint32)
            self._copy()

    def _copy(self) -> None:
        self._state.seen, self._state.logged = Seen(self._state.counts.copy(), [], 0), 0

    def seen(self) -> Seen:
        """Return the current counts, as a copy and a log."""
        return self._state.seen

    def staleness(self, seen: Seen, indices: Indices | None) -> Counts:
        """Return how many steps have changed each entry since the time of `seen`, uint32 (k,)."""
        at = slice(None) if indices is None else indices
        # C - C' at the entries, where C' = copy + the logged steps before the model was sent.
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
        """Count a step; the caller must not change `indices` later, because the log stores it."""
        state = self._state
        state.counts[slice(None) if indices is None else indices] += np.uint32(1)
        copy, log, steps = state.seen
        state.logged += STEP_COST + (0 if indices is None else len(indices))
        if state.logged * SHARE > len(state.counts):
            self._copy()
        else:
            log.append(indices)
            state.seen = Seen(copy, log, steps + 1)
