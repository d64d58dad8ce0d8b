"""Native tensors at the server: a mix of the values that nodes report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compression.flower.native_tensors import NONE, Arrays, Initial, differing, distance
from compression.flower.server.statistics_wrapper import mean, median
from compression.flower.server.update_filter import Screening, UpdateFilter, UpdateFilterState


@dataclass
class NativeState:
    """Native tensors that differ from those at the start of the run, by name.

    `now`: the current values. `reports`: what nodes have reported since, with `shares` and
    `weights`. `screen`: how far each node has moved the tensors.
    """

    now: dict[str, NDArray[Any]] = field(default_factory=dict)
    reports: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    screen: UpdateFilterState = field(default_factory=UpdateFilterState)


class NativeMix:
    """Native tensors at a server whose nodes send updates: the server mixes values, takes no step.

    Floats become x = (1 - mean of a_i) x + mean of a_i s_i, for reports s_i with shares a_i in
    0..1. Integers become the rounded mean of the reports. `robust`: all tensors become the median
    of the reports instead.
    """

    def __init__(
        self,
        initial: Initial | None,
        state: NativeState,
        screening: Screening,
        robust: bool = False,
    ) -> None:
        self.initial = NONE if initial is None else initial
        self._state, self._robust = state, robust
        self._screen = UpdateFilter(screening, state.screen, floor=1.0)

    @property
    def arrays(self) -> Arrays:
        """The current tensors by name; read only."""
        return {**self.initial.arrays, **self._state.now}

    def observe(self, reports: Iterable[Arrays]) -> None:
        """Take a round's reports, while the screen knows too few distances to judge one."""
        if self.initial.arrays and not self._screen.knows:
            now = self.arrays
            self._screen.observe(distance(report, now) for report in reports)

    def expect_usual(self, node: int, report: Arrays) -> None:
        """Raise `PayloadError` for a report that is unusually far from the current tensors."""
        if self.initial.arrays:
            self._screen.clip_factor(node, distance(report, self.arrays), None)

    def add(self, report: Arrays, share: float = 1.0, weight: float = 1.0) -> None:
        """Add a node's report with its share, and its weight in the mean."""
        if self.initial.arrays:
            self._state.reports.append(differing(report, self.initial.arrays))
            self._state.shares.append(min(share, 1.0))
            self._state.weights.append(weight)

    def take(self) -> None:
        """Mix the added reports into the tensors; start again."""
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

    def forget(self, nodes: Iterable[int]) -> None:
        """Forget nodes that are gone."""
        self._screen.forget(nodes)


def mean_of(factor: NDArray[np.float32] | np.float32) -> float:
    """Return the mean of an update's factors, one for each parameter; 1 for an empty array."""
    return float(np.mean(factor)) if np.size(factor) else 1.0
