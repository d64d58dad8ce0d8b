"""Writes a run's rows as event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewire.report.format import markdown_table
from edgewire.report.loggers import Ended, LoggedRun, Logger, final, grouped
from edgewire.report.runs import Row


class TensorBoard(Logger):
    """Writes scalars, and parameters as text, into the folder `tensorboard` in the run's folder.

    `tensorboard --logdir outputs` shows all runs.
    """

    requires = ("tensorboard",)
    extra = "tensorboard"

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Open an event file, and write the parameters. A resumed run adds another file."""
        from torch.utils.tensorboard import SummaryWriter

        place = run.folder / "tensorboard"
        if not run.resumed:  # files of an earlier run in this folder
            for file in place.glob("events.out.tfevents.*"):
                file.unlink()
        self._run = run
        self._writer = SummaryWriter(str(place), flush_secs=3600)  # `log` flushes
        if not run.resumed:
            rows = [(key, str(value)) for key, value in run.parameters().items()]
            self._writer.add_text("parameters", markdown_table(("option", "value"), rows))
        self._writer.flush()
        return {}

    def log(self, rows: Sequence[Row]) -> None:
        """Write all numbers of each row."""
        for row in rows:
            self._add(grouped(row), row["round"], self._run.time_of(row))
        self._writer.flush()

    def finish(self, ended: Ended, result: Row) -> None:
        """Write the result's numbers and how the run ended, and close the event file."""
        self._add(final(result), result.get("round", 0))
        self._writer.add_text("ended", ended)
        self._writer.close()

    def _add(self, values: Mapping[str, float], step: int, when: float | None = None) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step, when)
