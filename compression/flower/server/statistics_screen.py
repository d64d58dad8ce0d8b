"""Screens BatchNorm's running statistics: an update whose statistics are too far off is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...base import Indices, PayloadError, quiet
from ...batchnorm import Scale, exact_tensors, scale_of, trained_entries, variances
from ...decoder import Update
from ...layout import Layout
from ...screening import Screening
from ..records import Vector
from .statistics_averaging import median

LEAST = 3  # the fewest nodes from which a usual norm, change or weight is computed
REACH = 10.0  # while the usual norm is unknown: the largest norm, in units of the model's norm
FLOOR = 0.2  # the lower bound of the usual change of statistics, in standard deviations
RECENT = 15  # the most nodes whose statistics are stored, for their median


@quiet
def norm_of(*parts: Vector) -> float:
    """Return the L2 norm of the concatenated vectors; infinity if its square exceeds float32."""
    return math.sqrt(sum([float(np.dot(part, part)) for part in parts]))


def median_of(values: Iterable[float]) -> float:
    """Return the median of numbers; of two middle values the lower; 0 without numbers."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if found else 0.0


@dataclass
class StatisticsState:
    """State of `StatisticsScreen`.

    By node, the most recent last: `reports`: the node's last statistics, (s,). `moves`: the
    distance of these statistics from those in the message. For all nodes: `usual`: the usual
    distance between statistics in a message and in its reply (0: unknown). `centre`: the median of
    the reports, (s,). `since`: the number of reports used since `usual` and `centre` were computed.
    `names`: the names of the statistics. `origin`: the L2 norm of the first model, at least 1.
    """

    names: list[str] = field(default_factory=list)
    reports: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    moves: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    centre: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    since: int = 0
    origin: float = 0.0


class StatisticsSplit:
    """Divides a model's vector into trained entries and BatchNorm's running statistics.

    The statistics are the last entries of the vector. `trained`, `size`: the numbers of trained
    entries and of statistics. `layout`: the layout of the statistics. Raises `ValueError` if a
    trained tensor comes after a running statistic.
    """

    def __init__(self, layout: Layout) -> None:
        self.trained = trained_entries(layout)
        self.size = layout.size - self.trained
        self._variances = variances(layout)
        self.layout = layout.without(range(len(layout) - len(exact_tensors(layout))))

    def of(self, model: Vector) -> Vector:
        """Return a view of the running statistics in a model's vector, (s,)."""
        return model[self.trained :]

    def split_update(self, update: Update) -> tuple[Indices | None, Vector, Vector]:
        """Divide an update into the part for trained parameters, and the running statistics.

        Returns the indices of the trained parameters (None: all), the values at these indices, and
        the statistics. Raises `PayloadError` if the update lacks statistics, or if a variance is
        below 0.
        """
        indices, values = update.indices, update.values
        if not self.size:
            return indices, values, values[:0]
        statistics = update.entries(self.trained, self.trained + self.size)
        for start, stop in self._variances:
            if (update.entries(start, stop) < 0).any():
                raise PayloadError("its update holds a running variance below 0")
        cut = len(values) - self.size
        return None if indices is None else indices[:cut], values[:cut], statistics


class StatisticsScreen:
    """Limits how far BatchNorm's statistics may be from the median of the nodes' last statistics.

    This median is called the centre. A node's change is the distance between the statistics in a
    message and those in the node's reply. The server repeatedly takes the median of the nodes'
    changes. The usual change is the largest of these medians so far. The limits of `Screening` are
    multiples of the usual change. The server's own statistics are not used as the centre, because
    in an untrained model they are 0 (mean) and 1 (variance).
    """

    def __init__(
        self, options: Screening | None = None, state: StatisticsState | None = None
    ) -> None:
        self._options = Screening() if options is None else options
        self._state = StatisticsState() if state is None else state
        # `_now`: the usual change, and the median of the statistics, from the first round alone.
        # `_left`: the number of statistics of that round that `taken` has not seen yet.
        self._now = 0.0, np.zeros(0, np.float32)
        self._left = 0

    @property
    def knows(self) -> bool:
        """Whether the usual change of statistics is known; if not, call `observe` with a round."""
        return len(self._state.reports) >= LEAST

    def observe(self, layout: Layout, found: Iterable[tuple[Vector, Vector]]) -> None:
        """Compute, from one round's replies, the statistics' usual change and their median.

        The results are used only until the statistics of at least `LEAST` nodes are known. `found`:
        for each reply the statistics in the reply and those in the message, each (s,).
        """
        self._begin(layout)
        reports = list(found)
        self._left = 0
        if self.knows or not layout.size or len(reports) + len(self._state.reports) < LEAST:
            return
        centre = median([*self._state.reports.values(), *(report for report, _ in reports)])
        moves = [scale_of(layout).distance(*pair, centre) for pair in reports]
        self._now = max(median_of([*self._state.moves.values(), *moves]), FLOOR), centre
        self._left = len(reports)

    def taken(
        self, node: int, layout: Layout, report: Vector, sent: Vector, model: Vector | None
    ) -> Vector:
        """Return the BatchNorm statistics to use for a node, (s,).

        They are its own statistics, moved towards the median of the nodes' statistics if they are
        too far from it. `report`, `sent`: the statistics in the reply and in the message. `model`:
        the message's; None: unknown. Raises `PayloadError` for statistics that are refused.
        """
        if not layout.size:
            return report
        self._begin(layout)
        state, options, scale = self._state, self._options, scale_of(layout)
        usual, centre = self._now if self._left > 0 else (state.usual, state.centre)
        self._left -= 1
        if not usual:
            if options.statistics is not None and model is not None:
                state.origin = state.origin or max(norm_of(model), 1.0)
                if not norm_of(report - sent) <= REACH * state.origin:
                    raise PayloadError(
                        "its running statistics, the first, are many times the model's"
                    )
            self._used(node, report, scale.distance(report, sent, sent), scale)
            return report
        far, before = (scale.distance(each, centre, centre) for each in (report, sent))
        # If the statistics in the message were bad themselves, those in the reply may be as far
        # from the centre.
        most = max((options.statistics or math.inf) * usual, before)
        if options.statistics is not None and far > most:
            raise PayloadError(
                f"its running statistics are {far / usual:.3g} times the usual move away from the "
                f"other nodes' (screen.statistics={options.statistics:g})"
            )
        if options.clip is not None and far > max(options.clip * usual, before):
            report = scale.between(centre, report, options.clip * usual / far)
        self._used(node, report, scale.distance(report, sent, centre), scale)
        return report

    def _begin(self, layout: Layout) -> None:
        """Delete the state if it holds the statistics of another model."""
        if self._state.names != (names := list(layout.names)) or (
            len(self._state.centre) not in (0, layout.size)
        ):
            vars(self._state).update(vars(StatisticsState(names)))

    def _used(self, node: int, report: Vector, move: float, scale: Scale) -> None:
        state = self._state
        for kept in (state.reports, state.moves):
            kept.pop(node, None)
            if len(kept) == RECENT:
                del kept[next(iter(kept))]
        state.reports[node], state.moves[node] = report.copy(), move  # copied: it may be a view
        state.since += 1
        if self.knows and state.since >= len(state.reports) // 2:
            state.since, state.centre = 0, median(list(state.reports.values()))
            state.usual = max(state.usual, median_of(state.moves.values()), FLOOR)
