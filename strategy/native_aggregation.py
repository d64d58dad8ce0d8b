"""Aggregates native tensors (integers, masks, frozen weights) at the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compression.flower.native_tensors import NONE, Arrays, Initial, differing
from compression.flower.server.statistics_wrapper import mean, median


@dataclass
class NativeState:
    """The state of `NativeMix`; it holds only tensors that differ from their initial values.

    A report is the native tensors in a node's reply. `now`: the server's current tensors by name.
    `reports`: the reports since the last `take`, with their tensors by name. `shares`: for each
    report, the factor with which the server applies the node's update (a_i in `NativeMix`).
    `weights`: for each report, the node's weight in the mean.
    """

    now: dict[str, NDArray[Any]] = field(default_factory=dict)
    reports: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


class NativeMix:
    """The native tensors at a server: means of the nodes' tensors, without the optimiser's step.

    Floats become x = (1 - mean of a_i) x + mean of a_i s_i, for the nodes' reports s_i. The share
    a_i, in 0..1, is the factor with which the server applies the node's update. Integers become the
    rounded mean of the reports. With `robust`, all tensors become the median of the reports
    instead.
    """

    def __init__(
        self,
        initial: Initial | None,
        state: NativeState,
        robust: bool = False,
    ) -> None:
        self.initial = NONE if initial is None else initial
        self._state, self._robust = state, robust

    @property
    def arrays(self) -> Arrays:
        """The server's current native tensors by name; treat them as read-only."""
        return {**self.initial.arrays, **self._state.now}

    def add(self, report: Arrays, share: float = 1.0, weight: float = 1.0) -> None:
        """Add the native tensors of a node, with their share (a_i) and their weight in the mean."""
        if self.initial.arrays:
            self._state.reports.append(differing(report, self.initial.arrays))
            self._state.shares.append(min(share, 1.0))
            self._state.weights.append(weight)

    def take(self) -> None:
        """Compute the server's new tensors from the added reports, and delete the reports."""
        state = self._state
        if not state.reports:
            return
        mixed = {name: self._mixed(name, now) for name, now in self.arrays.items()}
        state.now = differing(mixed, self.initial.arrays)
        state.reports, state.shares, state.weights = [], [], []

    def _mixed(self, name: str, now: NDArray[Any]) -> NDArray[Any]:
        first = self.initial.arrays[name]
        values = [report.get(name, first) for report in self._state.reports]
        if all(value is now for value in values):
            return now
        if self._robust:
            return median(values)
        weights = np.asarray(self._state.weights, dtype=np.float64)
        if now.dtype.kind != "f":
            return mean(values, list(weights))
        parts = weights * self._state.shares
        return mean([now, *values], [float(np.sum(weights - parts)), *parts])


def mean_of(factor: NDArray[np.float32] | np.float32) -> float:
    """Return the mean of the factors with which an update is applied; 1 for no factors.

    `factor`: one number, or one number for each parameter.
    """
    return float(np.mean(factor)) if np.size(factor) else 1.0
