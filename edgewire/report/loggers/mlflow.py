"""Logs a run to MLflow: to a local database, or to a tracking server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from filelock import FileLock

from edgewire.report.format import one_line
from edgewire.report.loggers import Ended, LoggedRun, Logger, LoggerError, final, grouped
from edgewire.report.runs import Row

STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
LONGEST = 6000  # characters of a parameter's value that every store takes
KEY = 250  # characters of a key
# characters that a store refuses: there, at the begin of a part of a key, and at its end
REFUSED = re.compile(r"[^\w. /-]|(?:^|(?<=/))[./]|/$")
LOCK = ".mlflow.lock"  # in a sweep's folder
# MLflow's own defaults would let an unreachable server delay a run by several minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class MLflow(Logger):
    """Logs parameters, metrics, the result and how the run ended.

    `tracking_uri`: MLflow's store, such as `http://HOST:5000` or `sqlite:///mlflow.db`; null: the
    environment's `MLFLOW_TRACKING_URI`, else MLflow's default, a file in the working directory.
    `experiment`: the name of MLflow's experiment.
    """

    requires = ("mlflow", "sqlalchemy", "alembic")
    extra = "mlflow"

    def __init__(self, tracking_uri: str | None = None, experiment: str = "edgewire") -> None:
        self._uri, self._experiment = tracking_uri, experiment

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Create a run in MLflow; continue the earlier one if resumed."""
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of each table it creates

        self._run = run
        uri = str(run.saved.get("tracking_uri") or self._uri or mlflow.get_tracking_uri())
        # The jobs of a parallel sweep would create the same tables and the same experiment.
        lock = FileLock(run.folder.parent / LOCK) if run.group else nullcontext()
        try:
            with lock:
                self._id = self._open(mlflow.MlflowClient(tracking_uri=uri))
        except Exception as error:  # also those of SQLAlchemy and Alembic
            raise LoggerError(f"{uri} cannot be used: {one_line(str(error))}") from error
        return {"tracking_uri": uri, "run_id": self._id}

    def _open(self, client: Any) -> str:
        from mlflow.entities import Param

        self._client = client
        if known := self._run.saved.get("run_id"):
            client.update_run(known, status="RUNNING")
            return str(known)
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._experiment)
        tags = {"folder": str(self._run.folder)}
        if self._run.group:
            tags["sweep"] = self._run.group
        began = round(1000 * self._run.began)
        made = client.create_run(experiment, began, tags, run_name=self._run.name)
        params = [Param(key_of(k), str(v)[:LONGEST]) for k, v in self._run.parameters().items()]
        client.log_batch(made.info.run_id, params=params)  # in as many requests as they need
        return str(made.info.run_id)

    def log(self, rows: Sequence[Row]) -> None:
        """Log a metric for each number, with the round as its step."""
        from mlflow.entities import Metric

        metrics = [
            Metric(key_of(key), value, round(1000 * self._run.time_of(row)), row["round"])
            for row in rows
            for key, value in grouped(row).items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, ended: Ended, result: Row) -> None:
        """Log the result, and set the status of MLflow's run."""
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        step = int(result.get("round") or 0)
        metrics = [Metric(key_of(key), value, now, step) for key, value in final(result).items()]
        try:
            self._client.log_batch(self._id, metrics=metrics)
            self._client.set_tag(self._id, "ended", ended)
        finally:  # else MLflow would show it as running for ever
            self._client.set_terminated(self._id, STATUS[ended], end_time=now)


def key_of(name: str) -> str:
    """Return the key of a metric or parameter: its name without what MLflow refuses in a name."""
    return REFUSED.sub("_", name[:KEY])
