"""Makes the configured loggers, and runs them: a thread for each follows `history.jsonl`.

They run on the command's own machine. The configuration that is sent to a server or to nodes has no
loggers (`edgewire.conf.load.run_config`).
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from edgewire.conf.check import check_target
from edgewire.conf.own_packages import qualified, source_files
from edgewire.conf.schema import Config, ConfigError
from edgewire.report.curves import evenly
from edgewire.report.loggers import Ended, LoggedRun, Logger, LoggerError
from edgewire.report.reader import GrowingFile, file_name, read_json, readable
from edgewire.report.runs import HISTORY, Row, read_result

STATE = ".loggers"  # the folder in a run's folder that says how far each logger has come
OFTEN = 1.0  # seconds between two looks at the history
AT_ONCE = 1000  # rows that a logger gets in one call
RETRY, LONGEST = 5.0, 300.0  # bounds in seconds of the pause after a failure
LAST = 60.0  # seconds that the end of a run waits for its loggers
KEY = "logger"
DATE = re.compile(r"\d{4}-\d\d-\d\d")
log = getLogger("edgewire")


def loggers_of(config: Config) -> dict[str, Logger]:
    """Return the configured loggers by their names.

    `logger=NAME` adds the entry `logger.NAME`, and each entry names a class in `_target_`. The
    entry of a `_target_` in the group itself has the class's name. Raises `ConfigError` for a class
    that is no `Logger`, for wrong options, and for packages that are not installed.
    """
    packages = [word.partition("@")[0] for word in config.packages]
    group = qualified(KEY, config.logger or {}, packages)
    if not isinstance(group, Mapping):
        raise ConfigError(
            f"{KEY} must name one of conf/{KEY}/*.yaml, or several: {KEY}=[csv,mlflow]"
        )
    found = {f"{KEY}.{name}": each for name, each in group.items() if _is_logger(each)}
    own = {name: each for name, each in group.items() if not _is_logger(each)}
    if own.get("_target_"):
        found[KEY] = own
    elif own:
        name = min(map(str, own))
        hint = f"choose {KEY}={name}, or give +{KEY}.{name}._target_=PACKAGE.CLASS"
        raise ConfigError(f"{KEY}.{name} belongs to no logger that was chosen: {hint}")
    return {
        key.rpartition(".")[2] if key != KEY else str(node["_target_"]): _made(key, node)
        for key, node in found.items()
    }


def _is_logger(node: Any) -> bool:
    return isinstance(node, Mapping) and bool(node.get("_target_"))


def _made(key: str, node: Mapping[str, Any]) -> Logger:
    with suppress(ConfigError):  # finds it beside the folder of --config-dir and where users are
        source_files(str(node["_target_"]).partition(".")[0])
    target = check_target(key, node)
    kind = target.make
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ConfigError(
            f"{key}._target_={node['_target_']} is no Logger of edgewire.report.loggers"
        )
    if missing := [name for name in kind.requires if find_spec(name) is None]:
        how = f"pip install -e '.[{kind.extra}]'" if kind.extra else f"pip install {missing[0]}"
        raise ConfigError(f"{key} needs the package {missing[0]}: {how}")
    try:
        made: Logger = target.made()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key}: {' '.join(str(error).split())}") from error
    return made


def logged(
    loggers: Mapping[str, Logger], folder: Path, config: str, metric: str, resumed: bool
) -> AbstractContextManager[None]:
    """Return the context in which the loggers log this job's run (`logging_run`).

    `folder`: the run's folder; `config`: its configuration as JSON; `metric`: its main metric;
    `resumed`: whether the run continues an earlier one in this folder.
    """
    hydra = HydraConfig.get()
    sweep = Path(hydra.sweep.dir).absolute() if hydra.mode is RunMode.MULTIRUN else None
    group = _named(sweep) if sweep else None
    name = f"{group}_{folder.name}" if group else _named(folder)
    run = LoggedRun(
        folder, name, group, metric, json.loads(config), resumed, saved={}, began=time.time()
    )
    return logging_run(loggers, run)


def _named(folder: Path) -> str:
    """Return a folder's name; DATE_TIME for Hydra's folders, which are DATE/TIME."""
    date = folder.parent.name
    return f"{date}_{folder.name}" if DATE.fullmatch(date) else folder.name


@contextmanager
def logging_run(loggers: Mapping[str, Logger], run: LoggedRun) -> Iterator[None]:
    """In this context, let each logger log the run that writes its files to `run.folder`.

    `loggers`: by their names; they have not begun. `run.saved` is replaced by what each logger has
    stored in the folder. An exception in the context counts as the run's end, and is raised again.
    Raises `LoggerError` if a logger cannot begin. Later failures are warnings.
    """
    threads = [_LoggerThread(name, logger, run) for name, logger in loggers.items()]
    ended: Ended = "failed"
    begun: list[_LoggerThread] = []
    try:
        for thread in threads:
            thread.begin()
            begun.append(thread)
            thread.start()
        yield
        ended = "finished"
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a signal that ends the process
        ended = "interrupted"
        raise
    finally:
        result = readable(read_result, run.folder) or {}
        for thread in begun:
            thread.end(how_ended(ended, result), result)
        deadline = time.monotonic() + LAST
        for thread in begun:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("logger %s takes too long to end: its last rows may lack", thread.name)


def how_ended(ended: Ended, result: Row) -> Ended:
    """Return how a run ended, from its `result.json`; `ended`: as its engine's function ended."""
    if result.get("diverged"):
        return "diverged"
    if "interrupted" in (ended, result.get("stopped")):
        return "interrupted"
    if ended == "failed" or result.get("stopped") or not result.get("client_updates"):
        return "failed"
    return "finished"


def thinned(rows: Sequence[Row], most: int, metric: str) -> list[Row]:
    """Return at most `most` of the rows: the last one, rows with the metric, and others evenly."""
    if len(rows) <= most:
        return list(rows)
    last = len(rows) - 1
    evaluated = [place for place in range(last) if rows[place].get(metric) is not None]
    chosen = {last, *evenly(evaluated, most - 1)}
    others = [place for place in range(last) if place not in chosen]
    chosen.update(evenly(others, most - len(chosen)))
    return [rows[place] for place in sorted(chosen)]


class _LoggerThread(threading.Thread):
    """Gives new rows to one logger until the run has ended.

    The logger's state in the folder holds the round of the last logged row. So rows are not logged
    twice, when a resumed run repeats rounds after its checkpoint.
    """

    def __init__(self, name: str, logger: Logger, run: LoggedRun) -> None:
        super().__init__(name=name, daemon=True)
        self._logger, self._run = logger, run
        self._file = run.folder / STATE / f"{file_name(name)}.json"
        self._tail = GrowingFile(run.folder / HISTORY)
        self._state: dict[str, Any] = {}
        self._rows: list[Row] = []  # not logged yet
        self._newest = -1  # the round of the last row that was read
        self._over = threading.Event()
        self._end: tuple[Ended, Row] = "failed", {}
        self._told = False  # whether a warning was shown

    def begin(self) -> None:
        """Let the logger begin. Raises `LoggerError`."""
        run = self._run
        saved = self._saved() if run.resumed else {}
        self._newest = int(saved.get("round", -1))
        keep = {key: saved.get(key, getattr(run, key)) for key in ("began", "name", "group")}
        # A logger that the earlier run did not have begins anew.
        self._run = run = replace(run, **keep, saved=saved, resumed=bool(saved))
        try:
            made = self._logger.begin(run)
        except LoggerError as error:
            raise LoggerError(f"logger {self.name}: {error}") from error
        except Exception as error:  # a tool's code can raise anything
            raise LoggerError(f"logger {self.name} cannot begin: {_line(error)}") from error
        self._state = {**saved, **made, **keep, "round": self._newest}
        try:
            self._save()
        except (OSError, TypeError, ValueError) as error:
            raise LoggerError(f"logger {self.name}: its state: {_line(error)}") from error

    def end(self, ended: Ended, result: Row) -> None:
        """Let the thread log the last rows, finish the log and return."""
        self._end = ended, result
        self._over.set()

    def run(self) -> None:
        """Log new rows once a second; after a failure with longer and longer pauses."""
        pause, failed = OFTEN, RETRY
        while not self._over.wait(pause):
            if self._log():
                pause, failed = OFTEN, RETRY
            else:
                pause, failed = failed, min(2 * failed, LONGEST)
        if not self._log():
            log.warning("logger %s lacks %d rows of this run", self.name, len(self._rows))
        try:
            self._logger.finish(*self._end)
        except Exception as error:  # a tool's code can raise anything
            self._warn(error)

    def _log(self) -> bool:
        """Log all rows that the history has now; return whether that succeeded."""
        try:
            for row in self._tail.rows():
                if row["round"] > self._newest:
                    self._newest = row["round"]
                    self._rows.append(row)
            while some := self._rows[:AT_ONCE]:
                self._logger.log(thinned(some, self._most(some), self._run.metric))
                del self._rows[: len(some)]
                self._state["round"] = some[-1]["round"]
                self._save()
        except Exception as error:  # a tool's code can raise anything
            self._warn(error)
            return False
        return True

    def _most(self, rows: Sequence[Row]) -> int:
        """Return how many of the rows the logger gets, by the seconds between them."""
        first, last = (float(row.get("seconds") or 0.0) for row in (rows[0], rows[-1]))
        most = self._logger.rows_per_second * max(last - first, OFTEN)
        return max(1, round(min(most, AT_ONCE)))

    def _warn(self, error: Exception) -> None:
        if not self._told:
            log.warning("logger %s: %s; the run goes on", self.name, _line(error))
        self._told = True

    def _saved(self) -> dict[str, Any]:
        saved = readable(read_json, self._file) or {}
        return saved if isinstance(saved, dict) else {}

    def _save(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        partial = self._file.with_name(f"{self._file.name}.part")
        partial.write_text(json.dumps(self._state) + "\n")
        os.replace(partial, self._file)


def _line(error: BaseException) -> str:
    """Return an error's type and text in one line of at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
