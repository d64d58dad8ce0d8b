"""Loggers: they pass a run's rows to TensorBoard, MLflow, or a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from edgewire.report.runs import Row, dotted, number

Ended = Literal["finished", "diverged", "interrupted", "failed"]
STEPS = ("round", "rounds")  # the step of a row, and the number of steps: no metrics


class LoggerError(Exception):
    """A logger cannot begin. The message is one line that says what to do."""


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger logs.

    `folder`: the run's folder; `name`: the last two parts of its path; `group`: those of the sweep
    that the run belongs to, or None; `config`: the resolved configuration; `resumed`: whether the
    run continues an earlier one in this folder; `saved`: what `Logger.begin` returned in that
    earlier run, else empty; `began`: the Unix time of the run's start; the rows count their
    `seconds` from it.
    """

    folder: Path
    name: str
    group: str | None
    config: Mapping[str, Any]
    resumed: bool
    saved: Mapping[str, Any]
    began: float

    def parameters(self) -> dict[str, Any]:
        """Return the configuration with dotted keys and plain values; without null."""
        found = {key: value for key, value in dotted(self.config) if value not in (None, {})}
        kept = bool | int | float | str
        return {key: each if isinstance(each, kept) else str(each) for key, each in found.items()}

    def time_of(self, row: Row) -> float:
        """Return the Unix time of a row, without the pauses of a run that was resumed."""
        return self.began + float(row.get("seconds") or 0.0)


class Logger(ABC):
    """Passes the rows of one run to a tool. Derive your own logger from this class.

    The command calls `begin` before the run. Then a thread calls `log` about once a second with the
    new rows of `history.jsonl`, and `finish` at the end. If `log` raises an exception, one warning
    is shown, the run goes on, and `log` gets the same rows and the new ones again later.

    `requires`: the packages that the logger imports, in `begin` and later. `extra`: the extra of
    `pip install -e '.[EXTRA]'` that installs them.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Begin to log, or continue if `run.resumed`.

        Returns plain values, such as the tool's name of the run. They are stored in the run's
        folder, and a resumed run gets them as `run.saved`. Raises `LoggerError`.
        """
        return {}

    @abstractmethod
    def log(self, rows: Sequence[Row]) -> None:
        """Log new rows of `history.jsonl`; `rows`: at least one. Their `round` increases."""

    def finish(self, ended: Ended, result: Row) -> None:  # noqa: B027  # not every logger needs it
        """End the log; `result`: the content of `result.json`, {} if there is none."""


def grouped(row: Row) -> dict[str, float]:
    """Return a row's numbers as `GROUP/KEY`; the groups are bytes, time and metrics.

    Null is left out. A list becomes `GROUP/KEY/0`, `GROUP/KEY/1` and so on.
    """

    def group(key: str) -> str:
        return "bytes" if "_bytes" in key else "time" if "seconds" in key else "metrics"

    pairs = dotted({key: value for key, value in row.items() if key not in STEPS}, "/")
    return {f"{group(key)}/{key}": float(n) for key, v in pairs if (n := number(v)) is not None}


def final(result: Row) -> dict[str, float]:
    """Return the numbers of a result as `result/KEY`, without its lists."""
    found = ((key, number(value)) for key, value in result.items() if key not in STEPS)
    return {f"result/{key}": float(value) for key, value in found if value is not None}
