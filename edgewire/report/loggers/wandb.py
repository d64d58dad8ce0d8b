"""Logs a run to Weights & Biases: offline into the run's folder, or online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewire.report.loggers import Ended, LoggedRun, Logger, LoggerError, final, grouped
from edgewire.report.runs import Row

EXIT_CODE = {"finished": 0, "diverged": 1, "failed": 1, "interrupted": 130}


class Wandb(Logger):
    """Logs the configuration, metrics, the result and how the run ended.

    `project`, `entity`: where the run belongs at Weights & Biases. `mode`: `offline` writes files
    into the folder `wandb` in the run's folder, which `wandb sync` uploads later; `online` uploads
    them during the run. `run_name`: null: the name of the run's folder.
    """

    requires = ("wandb",)
    extra = "wandb"
    rows_per_second = 20

    def __init__(
        self,
        project: str = "edgewire",
        entity: str | None = None,
        mode: str = "offline",
        run_name: str | None = None,
    ) -> None:
        if mode not in ("offline", "online"):
            raise ValueError(f"logger.wandb.mode must be offline or online, not {mode}")
        self._project, self._entity, self._mode, self._name = project, entity, mode, run_name

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Create a run; continue the earlier one if resumed."""
        import wandb

        if self._mode == "online" and not wandb.api.api_key:
            raise LoggerError("there is no key for Weights & Biases: `wandb login` stores one")
        online = self._mode == "online"
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode="online" if online else "offline",
            dir=str(run.folder),
            id=run.saved.get("run_id"),
            resume="allow" if online and run.resumed else None,
            name=self._name or run.name,
            group=run.group,
            config=run.parameters(),
            settings=wandb.Settings(console="off", silent=True, init_timeout=30),
        )
        return {"run_id": self._run.id}

    def log(self, rows: Sequence[Row]) -> None:
        """Log each row's numbers, with the round as its step."""
        for row in rows:
            self._run.log(grouped(row), step=row["round"])

    def finish(self, ended: Ended, result: Row) -> None:
        """Add the result to the run's summary, and end the run with its exit code."""
        self._run.summary.update({**final(result), "ended": ended})
        self._run.finish(exit_code=EXIT_CODE[ended])
