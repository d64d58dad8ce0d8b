"""Follows the `history.jsonl` of a run, which may grow, be truncated, replaced or removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgewire.report.files.reader import GrowingFile, parse_json
from edgewire.report.metric import ACCURACY, LOSS, MainMetric, fit_to_show
from edgewire.report.runs import HISTORY_NUMBERS, Row, number
from edgewire.report.summary import sent_bytes

POINTS = 500  # of a curve, at most
# before the run has a result, these names tell that a value is a share of which more is better
SHARES = ("accuracy", "top5", "auroc", "iou")
# what a point of a curve has before its value
AXES = ("round", "seconds", "virtual_seconds", "uplink")
Axes = tuple[float | None, ...]
Point = tuple[Axes, float]  # the places on the axes, and the value


def ratio(top: float | None, bottom: float | None) -> float | None:
    """Return a quotient; None if a part is missing or the divisor is not above 0."""
    return None if top is None or not bottom or bottom <= 0 else top / bottom


class Curve:
    """A curve of at most `POINTS` points, which keeps its highest and lowest points.

    If it has too many points, it keeps of every four successive points the highest and the lowest.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []

    def add(self, point: Point) -> None:
        """Append a point."""
        self._points.append(point)
        if len(self._points) > POINTS:
            first, *inner, last = self._points
            groups = (inner[at : at + 4] for at in range(0, len(inner), 4))
            self._points = [first, *(each for group in groups for each in _extremes(group)), last]

    def points(self) -> list[Point]:
        """Return the points in their order."""
        return list(self._points)


def _extremes(group: list[Point]) -> list[Point]:
    """Return the points with the lowest and the highest value, in their order."""
    places = range(len(group))
    low = min(places, key=lambda at: group[at][1])
    high = max(places, key=lambda at: group[at][1])
    return [group[at] for at in sorted({low, high})]


class History:
    """The rows of a run so far: the last one and the curves.

    `metric`: the main metric. The rows tell its name, and the run's result tells the rest.
    `version`: changes whenever the curves change.
    """

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self._reset()

    def _reset(self) -> None:
        self._begun = self._file.begun
        self.rows = 0
        self.metric: MainMetric | None = None
        self.last: Row = {}
        self.evaluation: float | None = None  # the last value of the main metric
        self.best: float | None = None
        self._curves: dict[str, Curve] = {}
        self._progress = Curve()  # round, updates, bytes of both directions, seconds

    @property
    def version(self) -> str:
        """A text that differs whenever rows were added or the file began anew."""
        return f"{self._begun}.{self.rows}"

    def read(self) -> None:
        """Read what was written since the last call; begin anew if the file is another one."""
        with suppress(OSError, ValueError):  # it cannot be read now: the next call tries again
            lines = self._file.lines()
            if self._file.begun != self._begun:
                self._reset()
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = parse_json(line)
        except ValueError:  # a damaged line: the others count
            return
        if not isinstance(row, dict) or number(row.get("round")) is None:
            return
        before, self.last = self.last, row
        self.rows += 1
        self.metric = self.metric or metric_in(row)
        up = sent_bytes(row, "uplink")
        axes = (*(number(row.get(key)) for key in AXES[:-1]), up)
        for name, value in self._values(row, before):
            if value is not None:
                self._curves.setdefault(name, Curve()).add((axes, value))
        self._note_best(number(row.get(self.metric.name)))
        if (seconds := number(row.get("seconds"))) is not None:
            down = sent_bytes(row, "downlink")
            updates = number(row.get("client_updates"))
            self._progress.add(((row["round"], updates, (up or 0) + (down or 0)), seconds))

    def _values(self, row: Row, before: Row) -> Iterator[tuple[str, float | None]]:
        assert self.metric is not None
        yield "metric", number(row.get(self.metric.name))
        yield "train_loss", number(row.get("train_loss"))
        yield "staleness", number(row.get("staleness"))
        yield "density", density(row, before)

    def _note_best(self, value: float | None) -> None:
        if value is None:
            return
        assert self.metric is not None
        self.evaluation = value
        self.best = value if self.best is None else self.metric.best([self.best, value])

    def curves(self) -> dict[str, list[Point]]:
        """Return the points of each curve: the values of `AXES`, and the curve's."""
        return {name: curve.points() for name, curve in self._curves.items()}

    def speeds(self) -> dict[str, float | None]:
        """Return rounds, updates and bytes per second in the last fifth of the run's time."""
        points = self._progress.points()
        names = ("rounds", "updates", "bytes")
        if len(points) < 2:
            return dict.fromkeys(names)
        now, end = points[-1]
        earlier = [point for point in points[:-1] if point[1] <= 0.8 * end]
        then, begin = earlier[-1] if earlier else points[0]
        return {
            name: None if a is None or b is None or a < b else ratio(a - b, end - begin)
            for name, a, b in zip(names, now, then, strict=True)
        }


def density(row: Row, before: Row) -> float | None:
    """Return the share of entries that the updates since the row before had sent."""
    part, whole = (
        (number(row.get(key)) or 0) - (number(before.get(key)) or 0)
        for key in ("uplink_entries", "uplink_entries_whole")
    )
    return ratio(part, whole)


def metric_in(row: Row) -> MainMetric:
    """Return the main metric of a run without a result: the first name after `loss` in a row."""
    names = list(row)
    place = names.index("loss") + 1 if "loss" in names else len(names)
    name = names[place] if place < len(names) else LOSS.name
    if name == "accuracy":
        return ACCURACY
    value = row.get(name)
    if (
        name in HISTORY_NUMBERS
        or not fit_to_show(name)
        or (value is not None and number(value) is None)
    ):
        return LOSS
    return MainMetric(name, name in SHARES, name in SHARES)
