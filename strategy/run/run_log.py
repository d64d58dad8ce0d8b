"""Writes a run's result files: `history.jsonl`, `result.json`, `model.safetensors`."""

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from io import FileIO
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from edgewire.compression.base import DIVERGED
from edgewire.conf.schema import ConfigError
from edgewire.strategy.run.checkpoint_file import FILE
from edgewire.strategy.run.whole_files import NotWritten, replace_file
from edgewire.task.model_file import MODEL
from edgewire.task.model_info import ModelInfo
from edgewire.task.objectives import Objective

Row = dict[str, Any]
OFTEN = 60.0  # seconds from one writing of the newest model to the next
log = getLogger("edgewire")
HISTORY, RESULT = "history.jsonl", "result.json"
PLAIN = {bool, int, str, type(None)}  # values that JSON always has
BLOWN_UP = 1000  # above this many times the loss before training, a model has diverged


@dataclass
class RunLogState:
    """The state of a `RunLog`, as a checkpoint holds it.

    `last`: the last row of `history.jsonl`. `measured`, `first`: the last and the first row with an
    evaluation; the first one is from before the training. `best`: the best value of the main
    metric. `worst`: the largest loss. `seconds`: the seconds since the start, in a checkpoint.
    `size`: the written bytes of `history.jsonl`.
    """

    last: Row = field(default_factory=dict)
    measured: Row = field(default_factory=dict)
    first: Row = field(default_factory=dict)
    best: float | None = None
    worst: float = 0.0
    seconds: float = 0.0
    size: int = 0


class RunLog:
    """Writes the result files of one run into `folder`; if this is "", it writes nothing.

    A full disk does not end the run: rows of `history.jsonl` wait until there is space again.

    `anew`: True to begin an empty `history.jsonl`; otherwise call `load` afterwards. Each row of
    this file holds the counters so far. `result.json` holds the last row, and values that are known
    only at the end. NaN and infinity are written as null. `objective`: its main metric says which
    evaluation is the best. `info`: what `model.safetensors` says of its model; None: nothing.
    """

    info: ModelInfo | None = None

    def __init__(self, folder: str, objective: Objective, *, anew: bool = True) -> None:
        self.folder = Path(folder) if folder else None
        self._main, self._names = objective.main, objective.names
        self._state = RunLogState()
        self._history: FileIO | None = None  # open for the whole run, which may have 100,000 rounds
        self._waiting = b""  # rows that are not written
        self._start = time.perf_counter()
        self._kept: float | None = None  # the time when the model was last written; None: not yet
        self._kept_round: int | None = None  # the round of the model on the disk
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder is not None and anew:
            for name in (MODEL, RESULT):  # files of an earlier run
                (self.folder / name).unlink(missing_ok=True)
            self._history = (self.folder / HISTORY).open("wb", buffering=0)

    @property
    def last(self) -> Row:
        """The last row of the history; {} before the first."""
        return self._state.last

    def save(self) -> RunLogState:
        """Write `history.jsonl` to the disk, and return the state of this log for a checkpoint.

        Raises `OSError` while rows of the file cannot be written.
        """
        assert self._history is not None
        self._write_rows()
        os.fsync(self._history.fileno())
        return replace(self._state, seconds=time.perf_counter() - self._start)

    def load(self, state: RunLogState) -> None:
        """Resume with a saved state, and delete the rows of `history.jsonl` after it.

        Raises `ConfigError` if the file is shorter than in the saved state.
        """
        assert self.folder is not None
        path = self.folder / HISTORY
        if not path.is_file() or path.stat().st_size < state.size:
            raise ConfigError(
                f"resume={self.folder}: {HISTORY} lacks rows that were there: put it back as it "
                "was, or start a new run"
            )
        self._history, self._state = path.open("r+b", buffering=0), replace(state)
        self._history.truncate(state.size)
        self._start = time.perf_counter() - state.seconds

    def add(self, row: Row) -> Row:
        """Add the seconds since the start to a round's row, and append it to `history.jsonl`.

        Returns the row.
        """
        row = {**row, "seconds": round(time.perf_counter() - self._start, 4)}
        self._state.last = row
        if row.get("loss") is not None:
            self.measured(row)
        if self._history is not None:
            waited, self._waiting = self._waiting, self._waiting + f"{_json(row)}\n".encode()
            try:
                self._write_rows()  # now, because other programs read this file during the run
            except OSError as error:
                if not waited:
                    log.warning("%s cannot be written, its rows wait for space: %s", HISTORY, error)
        return row

    def _write_rows(self) -> None:
        """Write the waiting rows at the end of what is written; raises `OSError` if rows remain.

        The position is explicit, because a write that fails may have moved the file's own.
        """
        while self._history is not None and self._waiting:
            done = os.pwrite(self._history.fileno(), self._waiting, self._state.size)
            self._waiting = self._waiting[done:]
            self._state.size += done

    @property
    def due(self) -> bool:
        """Whether to write the newest model now, in case the run does not finish."""
        if self.folder is None:
            return False
        return self._kept is None or time.perf_counter() - self._kept > OFTEN

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Replace `model.safetensors` atomically; log a warning if that fails, but never raise."""
        self._kept = time.perf_counter()
        try:
            self._save(weights)
        except OSError as error:
            log.warning("the newest model cannot be written: %s", error)

    def _save(self, weights: Mapping[str, Tensor], *, durable: bool = False) -> None:
        assert self.folder is not None
        whole = torch.contiguous_format
        tensors = {n: t.detach().cpu().clone(memory_format=whole) for n, t in weights.items()}
        metadata = replace(self.info, versions=_versions()).metadata() if self.info else None
        replace_file(self.folder / MODEL, save(tensors, metadata), durable=durable)
        self._kept_round = self.last.get("round")

    def _write_result(self, result: Row) -> None:
        assert self.folder is not None
        replace_file(self.folder / RESULT, _json(result, indent=2), "\n", durable=True)

    def measured(self, row: Row) -> None:
        """Record a row with an evaluation: its loss and metrics are those of the newest model."""
        state, value = self._state, row.get(self._main.name)
        state.measured, state.first = row, state.first or row
        if value is not None:
            best = value if state.best is None or math.isnan(state.best) else state.best
            better = value > best if self._main.higher else value < best
            state.best = value if better else best
        loss = row["loss"]
        state.worst = max(state.worst, math.inf if math.isnan(loss) else loss)

    def diverged(self, trained: Tensor) -> bool:
        """Return whether the model has diverged; docs/run-files.md says when it has.

        `trained`: the values that must be finite. Other tensors, such as a mask, may hold infinity.
        Without an evaluation only these values are checked.
        """
        if not bool(torch.isfinite(trained).all()):
            return True
        now, before = self._state.measured, self._state.first
        if not now:
            return False
        if now["loss"] - now["loss"] != 0:  # the loss is not finite
            return True
        blown_up = self._state.worst > BLOWN_UP * max(before["loss"], 1.0)
        shares = [row.get(self._main.name) for row in (now, before)]
        if not (self._main.share and self._main.higher) or None in shares:
            return bool(blown_up and now["loss"] > before["loss"])
        return bool(blown_up and now[self._main.name] < 2 * before[self._main.name])

    def finish(self, summary: Row, weights: Mapping[str, Tensor], trained: Tensor) -> Row:
        """Write `result.json`, and `model.safetensors` with `weights`; return the result.

        The result holds `summary`, the last row's counters, and the loss and the metrics of the
        last evaluation. `best_accuracy` (`best_` and the name of the main metric) is the best value
        of all rounds. `diverged` says whether the last round's model has diverged. `trained`: as in
        `diverged`.

        Raises `NotWritten` if rows, model or result cannot be written.
        """
        result = dict(self.last)
        result.update({key: self._state.measured.get(key) for key in self._names})
        diverged = DIVERGED in (summary.get("stopped") or "") or self.diverged(trained)
        result.update({f"best_{self._main.name}": self._state.best, "diverged": diverged})
        result.update(**summary, versions=_versions())
        if self.folder is None:
            return result
        try:
            self._write_rows()
            if self._history is not None:
                self._history.close()
            self._save(weights, durable=True)
            self._write_result(result)
        except OSError as error:
            reason = f"its end cannot be written: {error.strerror or error}"
            result["stopped"] = result["ended"] = result.get("stopped") or reason
            with suppress(OSError):
                self._write_result(result)
            good = f"{self.folder / MODEL}, of round {self._kept_round}"
            if (self.folder / FILE).is_file():
                good = str(self.folder / FILE)
            elif self._kept_round is None:
                good = "none"
            raise NotWritten(f"the run has ended, {reason}; its last good state: {good}") from error
        return result


def _json(row: Row, indent: int | None = None) -> str:
    return json.dumps(_finite(row), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value with None in place of NaN and infinity, because JSON does not have these."""
    if isinstance(value, dict):
        return {k: v if type(v) in PLAIN else _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [v if type(v) in PLAIN else _finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _versions() -> dict[str, str]:
    packages = ("edgewire", "flwr", "torch", "torchvision", "numpy", "hydra-core")
    found = {"python": platform.python_version()}
    # Other vector instructions of the CPU give other last bits, and after many steps another
    # accuracy.
    found["cpu"] = torch.backends.cpu.get_cpu_capability()
    for package in packages:
        try:
            found[package] = version(package)
        except ImportError:  # EdgeWire runs from a checkout or a bundle, and is not installed
            found[package] = "not installed"
    return found
