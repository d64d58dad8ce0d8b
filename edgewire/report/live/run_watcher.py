"""Reads a run's folder again and again, and tells the run's state for the page."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from os.path import getmtime
from pathlib import Path
from typing import Any

from edgewire.report.errors import ResultsError
from edgewire.report.files.reader import folders, left_out, noting, readable
from edgewire.report.live.history import AXES, History, ratio
from edgewire.report.live.nodes import NODES, Nodes
from edgewire.report.metric import LOSS, MainMetric, main_of
from edgewire.report.runs import (
    FAILED,
    HISTORY,
    RESULT,
    failed_line,
    number,
    read_overrides,
    read_result,
)
from edgewire.report.summary import sent_bytes

CHECKPOINT, PLACE = "checkpoint", "superlink.json"
FILES = (".hydra", RESULT, HISTORY, NODES, CHECKPOINT, FAILED, PLACE, "model.safetensors")
SILENT = 60.0  # seconds without news, at least, after which a run may be dead
LONG = 10.0  # this is also so many times the time of a round
LINES = 300  # characters of a reason


class RunWatcher:
    """Watches the run in a folder; its methods may be called by several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._history, self._nodes = History(folder / HISTORY), Nodes(folder / NODES)
        self._lock = threading.Lock()

    def look(self, history: str = "", nodes: str = "") -> dict[str, Any]:
        """Return the run's state, ready for JSON.

        `history`, `nodes`: the versions that the page has. The state has `curves` and `nodes` only
        in another version.
        """
        with self._lock, noting() as notes:
            self._history.read()
            self._nodes.read()
            found = self._state(history, nodes)
            said = (found["reason"], left_out(notes | self._nodes.left_out))
            return found | {"reason": "; ".join(filter(None, said)) or None}

    def stage(self) -> str:
        """Return the stage of the run, such as "running" or "finished"."""
        with self._lock:
            self._history.read()
            self._nodes.read()
            return self._stage(readable(read_result, self.folder) or {})[0]

    def _state(self, history: str, nodes: str) -> dict[str, Any]:
        result, rows = readable(read_result, self.folder) or {}, self._history
        # The result has values that only the end of the run tells; a damaged value replaces none.
        last = rows.last | {
            key: value
            for key, value in result.items()
            if number(value) is not None or number(rows.last.get(key)) is None
        }
        metric = self._metric(result)
        state, reason = self._stage(result)
        at, of = self._round(last, state), number(last.get("rounds"))
        speeds, overrides = rows.speeds(), readable(read_overrides, self.folder) or {}
        rest = ratio(of - at, speeds["rounds"]) if at is not None and of is not None else None
        found: dict[str, Any] = {
            "name": self.folder.name,
            "folder": str(self.folder),
            "overrides": " ".join(f"{key}={value}" for key, value in overrides.items()) or None,
            "state": state,
            "reason": reason,
            "silence": self._silence(),
            "round": at,
            "rounds": of,
            "unit": "update" if "staleness" in last else "round",
            "metric": {
                **metric._asdict(),
                "value": _first(number(result.get(metric.name)), rows.evaluation),
                "best": _first(number(result.get(f"best_{metric.name}")), rows.best),
            },
            **{
                key: number(last.get(key))
                for key in ("loss", "train_loss", "seconds", "virtual_seconds", "staleness")
            },
            "updates": number(last.get("client_updates")),
            "failures": number(last.get("failures")),
            "left": rest if state == "running" else None,
            "speeds": speeds,
            "uplink": direction(last, "uplink"),
            "downlink": direction(last, "downlink"),
            "versions": {"history": rows.version, "nodes": self._nodes.version},
            "axes": AXES,
        }
        if history != rows.version:
            found["curves"] = rows.curves()
        if nodes != self._nodes.version:
            found["nodes"] = self._nodes.content
        return found

    def _round(self, last: dict[str, Any], state: str) -> float | None:
        """Return the number of rounds so far; an asynchronous run tells it first in its nodes."""
        at = number(last.get("round"))
        if state == "running" and at is not None and self._nodes.content is not None:
            return max(at, self._nodes.content["round"] or 0.0)
        return at

    def _metric(self, result: dict[str, Any]) -> MainMetric:
        try:
            return main_of(result) if result else self._history.metric or LOSS
        except ValueError:
            return self._history.metric or LOSS

    def _silence(self) -> float | None:
        """Return the seconds since the run wrote its last row or `nodes.json`."""
        found = [readable(getmtime, self.folder / name) for name in (HISTORY, NODES)]
        times = [each for each in found if each is not None]
        return max(time.time() - max(times), 0.0) if times else None

    def _stage(self, result: dict[str, Any]) -> tuple[str, str | None]:
        """Return the stage of the run and a line that explains it."""
        if not self.folder.is_dir():
            return "removed", "the run's folder is not there any more"
        if result:
            return self._end(result)
        if (line := failed_line(self.folder)) is not None:
            return "failed", " ".join(line.split())[:LINES]
        if not self._history.rows and self._nodes.content is None:
            if (self.folder / PLACE).exists():
                return "waiting", "the run has been submitted to a server, and has not begun"
            return "waiting", "the run has written nothing yet"
        silence, per_round = self._silence() or 0.0, self._history.speeds()["rounds"]
        if silence > max(SILENT, LONG * (ratio(1.0, per_round) or 0.0)):
            return "silent", f"nothing was written lately; the run may be dead{self._resume()}"
        return "running", None

    def _end(self, result: dict[str, Any]) -> tuple[str, str | None]:
        stopped = result.get("stopped")
        reason = " ".join(str(stopped).split())[:LINES] if stopped else None
        if result.get("diverged"):
            return "diverged", reason or "the model has diverged"
        if reason == "interrupted":
            return "interrupted", f"the run was stopped{self._resume()}"
        if reason:
            return "failed", reason
        done, planned = number(result.get("round")), number(result.get("rounds"))
        if done is not None and planned is not None and done < planned:
            return "ended early", f"the run ended at {done:g} of {planned:g}"
        return "finished", None

    def _resume(self) -> str:
        if not any((self.folder / name).exists() for name in (CHECKPOINT, PLACE)):
            return ""
        return f"; to resume it: python run.py resume={shlex.quote(str(self.folder))}"


class FolderWatcher:
    """Watches a run, or the newest running job of a sweep; the folder need not exist yet.

    `folder`: the given folder. It has the method of `RunWatcher`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._watchers: dict[Path, RunWatcher] = {}
        self._seen = False  # whether the folder has been there
        self._lock = threading.Lock()

    def look(self, history: str = "", nodes: str = "") -> dict[str, Any]:
        """See `RunWatcher`. The reason names the shown job and counts the others' states."""
        with self._lock:
            self._seen = self._seen or self.folder.is_dir()
            jobs = sweep_jobs(self.folder)
            for job in jobs or [self.folder]:
                self._watchers.setdefault(job, RunWatcher(job))
            states = {job: self._watchers[job].stage() for job in jobs}
            running = [job for job, state in states.items() if state == "running"]
            shown = (running or jobs or [self.folder])[-1]
        # versions name the job: a page may have the curves and the nodes of another one
        start = f"{shown.name}/"
        had = [
            version.removeprefix(start) if version.startswith(start) else "another job's"
            for version in (history, nodes)
        ]
        found = self._watchers[shown].look(*had)
        found["versions"] = {key: start + value for key, value in found["versions"].items()}
        if not jobs:
            if found["state"] == "removed" and not self._seen:
                found |= {"state": "waiting", "reason": f"waiting for {self.folder}"}
            return found
        others = Counter(state for job, state in states.items() if job != shown)
        text = ", ".join(f"{count} {state}" for state, count in others.items())
        said = [f"job {shown.name} of the sweep {self.folder.name}", text and f"others: {text}"]
        return found | {"reason": "; ".join(filter(None, [*said, found["reason"]]))}


def sweep_jobs(folder: Path) -> list[Path]:
    """Return the jobs of a sweep in the order of their numbers; none for the folder of a run."""
    if any((folder / name).exists() for name in FILES):
        return []
    below = [folder / name for name in next(folders(folder), (folder, set()))[1]]
    found = [
        job for job in below
        if any((job / name).exists() for name in FILES[:3]) and not job.is_symlink()
    ]  # fmt: skip
    return sorted(found, key=lambda job: (len(job.name), job.name))


def direction(row: dict[str, Any], way: str) -> dict[str, float | None]:
    """Return the bytes of a direction ("uplink" or "downlink"), in parts, and their ratio."""
    count, plain = sent_bytes(row, way), number(row.get(f"{way}_bytes_float32"))
    if plain is not None:
        plain += number(row.get(f"{way}_other_bytes")) or 0
    return {
        "bytes": count,
        "float32": plain,
        "ratio": ratio(plain, count),
        "indices": number(row.get(f"{way}_index_bytes")),
        "values": number(row.get(f"{way}_value_bytes")),
    }


def _first(*values: float | None) -> float | None:
    """Return the first value that is known."""
    return next((value for value in values if value is not None), None)


def expect_run(folder: Path) -> Path:
    """Return the absolute path of a run's folder.

    An empty or missing folder is a run that has not begun; a sweep is watched job by job. Raises
    `ResultsError` for a file, and for a folder of other files.
    """
    if folder.exists() and not folder.is_dir():
        raise ResultsError(f"{folder}: no such folder; name the folder of a run")
    if (
        not folder.exists()
        or any((folder / name).exists() for name in FILES)
        or not any(folder.iterdir())
        or sweep_jobs(folder)
    ):
        return folder.resolve()
    raise ResultsError(f"{folder} is no run: it has neither {HISTORY} nor .hydra/")
