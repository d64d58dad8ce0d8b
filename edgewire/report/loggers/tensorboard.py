"""Writes a run's rows as event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewire.report.loggers import Ended, LoggedRun, Logger, final, grouped
from edgewire.report.runs import Row


class TensorBoard(Logger):
    """Writes scalars and hyperparameters: `tensorboard --logdir outputs` shows all runs.

    `folder`: the event files of each run are written in a folder in this one, which has the run's
    name; null: they are written in the folder `tensorboard` in the run's own folder.
    """

    requires = ("tensorboard",)
    extra = "tensorboard"

    def __init__(self, folder: str | None = None) -> None:
        self._given = folder

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Open an event file, and write the hyperparameters. A resumed run adds another file."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from torch.utils.tensorboard.summary import hparams

        place = Path(self._given).expanduser() / run.name if self._given else None
        place = Path(run.saved.get("place") or place or run.folder / "tensorboard").absolute()
        if not run.resumed:  # files of an earlier run in this folder
            for file in place.glob("events.out.tfevents.*"):
                file.unlink()
        self._run, self._last = run, run.began
        self._writer = EventFileWriter(str(place), flush_secs=3600)  # `log` flushes
        names = dict.fromkeys([f"metrics/{run.metric}", "bytes/uplink_bytes"], 0.0)
        experiment, session, self._end = hparams(  # type: ignore[no-untyped-call]
            run.parameters(), names
        )
        if not run.resumed:
            self._add(experiment, None, run.began)
            self._add(session, None, run.began)
        self._writer.flush()
        return {"place": str(place)}

    def log(self, rows: Sequence[Row]) -> None:
        """Write one event for each row, with all of its numbers."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            self._last = self._run.time_of(row)
            values = [Summary.Value(tag=t, simple_value=v) for t, v in grouped(row).items()]
            self._add(Summary(value=values), row["round"], self._last)
        self._writer.flush()

    def finish(self, ended: Ended, result: Row) -> None:
        """Write the result's numbers, and close the event file."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=t, simple_value=v) for t, v in final(result).items()]
        if values:
            self._add(Summary(value=values), result.get("round"), self._last)
        if ended == "finished":
            self._add(self._end, None, self._last)
        self._writer.close()

    def _add(self, summary: Any, step: int | None, when: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=when, step=step, summary=summary))
