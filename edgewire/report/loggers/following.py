"""Makes the configured loggers, and runs them: a thread follows `history.jsonl`.

They run on the command's own machine. The configuration that is sent to a server or to nodes has no
loggers (`edgewire.conf.load.run_config`).
"""

from __future__ import annotations

import json
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

from edgewire.conf.check import build, check_target
from edgewire.conf.own_packages import qualified, source_files
from edgewire.conf.schema import Config, ConfigError
from edgewire.report.format import one_line
from edgewire.report.loggers import Ended, LoggedRun, Logger, LoggerError
from edgewire.report.reader import GrowingFile, file_name, read_json, readable, row_in
from edgewire.report.runs import HISTORY, Row, read_result
from edgewire.strategy.run.whole_files import replace_file
from edgewire.task.errors import described

STATE = ".loggers"  # the folder in a run's folder that says how far each logger has come
OFTEN = 1.0  # seconds between two looks at the history
LAST = 60.0  # seconds that the end of a run waits for its loggers
KEY = "logger"
log = getLogger("edgewire")


def loggers_of(config: Config) -> dict[str, Logger]:
    """Return the configured loggers by their names.

    `logger=NAME` adds the entry `logger.NAME`, and each entry names a class in `_target_`. A
    `_target_` in the group itself is the only logger, and has the class's name. Raises
    `ConfigError` for a class that is no `Logger`, for wrong options, and for missing packages.
    """
    packages = [word.partition("@")[0] for word in config.packages]
    group = qualified(KEY, config.logger or {}, packages)
    if not isinstance(group, Mapping):
        raise ConfigError(
            f"{KEY} must name one of conf/{KEY}/*.yaml, or several: {KEY}=[csv,mlflow]"
        )
    if group.get("_target_"):
        return {str(group["_target_"]): _made(KEY, group)}
    return {str(name): _made(f"{KEY}.{name}", node) for name, node in group.items()}


def _made(key: str, node: Any) -> Logger:
    if not isinstance(node, Mapping) or not node.get("_target_"):
        name = key.rpartition(".")[2]
        hint = f"choose {KEY}={name}, or give +{KEY}.{name}._target_=PACKAGE.CLASS"
        raise ConfigError(f"{key} belongs to no logger that was chosen: {hint}")
    with suppress(ConfigError):  # finds it beside the folder of --config-dir and where users are
        source_files(str(node["_target_"]).partition(".")[0])
    kind = check_target(key, node).make
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ConfigError(
            f"{key}._target_={node['_target_']} is no Logger of edgewire.report.loggers"
        )
    if missing := [name for name in kind.requires if find_spec(name) is None]:
        how = f"pip install -e '.[{kind.extra}]'" if kind.extra else f"pip install {missing[0]}"
        raise ConfigError(f"{key} needs the package {missing[0]}: {how}")
    made: Logger = build(key, node)
    return made


def logged(
    loggers: Mapping[str, Logger], folder: Path, config: str, resumed: bool
) -> AbstractContextManager[None]:
    """Return the context in which the loggers log this job's run (`logging_run`).

    `folder`: the run's folder; `config`: its configuration as JSON; `resumed`: whether the run
    continues an earlier one in this folder.
    """
    hydra, group, parts = HydraConfig.get(), None, folder.parts[-2:]  # such as DATE, TIME
    if hydra.mode is RunMode.MULTIRUN:
        group = "_".join(Path(hydra.sweep.dir).absolute().parts[-2:])
        parts = (group, folder.name)
    values, name = json.loads(config), "_".join(parts)
    run = LoggedRun(folder, name, group, values, resumed, saved={}, began=time.time())
    return logging_run(loggers, run)


@contextmanager
def logging_run(loggers: Mapping[str, Logger], run: LoggedRun) -> Iterator[None]:
    """In this context, let each logger log the run that writes its files to `run.folder`.

    `loggers`: by their names; they have not begun. `run.saved` is replaced by what each logger has
    stored in the folder. An exception in the context counts as the run's end, and is raised again.
    Raises `LoggerError` if a logger cannot begin. Later failures are warnings.
    """
    begun: list[_Begun] = []
    try:
        for name, logger in loggers.items():
            begun.append(_Begun(name, logger, run))
    except BaseException:  # also Ctrl-C
        for each in begun:
            each.finish("failed", {})
        raise
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(run.folder, begun, over), daemon=True)
    thread.start()
    ended: Ended = "failed"
    try:
        yield
        ended = "finished"
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a signal that ends the process
        ended = "interrupted"
        raise
    finally:
        result = readable(read_result, run.folder) or {}
        for each in begun:
            each.end = how_ended(ended, result), result
        over.set()
        thread.join(LAST)
        if thread.is_alive():
            log.warning("the loggers take too long to end: the last rows may lack")


def how_ended(ended: Ended, result: Row) -> Ended:
    """Return how a run ended, from its `result.json`; `ended`: as its engine's function ended."""
    if result.get("diverged"):
        return "diverged"
    if "interrupted" in (ended, result.get("stopped")):
        return "interrupted"
    if ended == "failed" or result.get("stopped") or not result.get("client_updates"):
        return "failed"
    return "finished"


def _follow(folder: Path, loggers: Sequence[_Begun], over: threading.Event) -> None:
    """Pass the new rows of a run's history to its loggers, once a second until the run's end."""
    tail, ended = GrowingFile(folder / HISTORY), False
    while not ended:
        ended = over.wait(OFTEN)
        rows = []
        with suppress(OSError, ValueError):  # the file cannot be read now: the next look may
            rows = [row for line in tail.lines() if (row := row_in(line))]
        # those that have failed come last: they may wait for a server that does not answer
        for each in sorted(loggers, key=lambda each: each.failed):
            each.log(rows)
            if ended:
                each.finish(*each.end)


class _Begun:
    """A logger that has begun, and the rows that it has not logged yet.

    Its state in the run's folder holds the round of the last logged row. So rows are not logged
    twice, when a resumed run repeats rounds after its checkpoint. `failed`: whether it has failed.
    `end`: how the run ended, and its result. Raises `LoggerError` if the logger cannot begin.
    """

    end: tuple[Ended, Row] = "failed", {}

    def __init__(self, name: str, logger: Logger, run: LoggedRun) -> None:
        self._name, self._logger = name, logger
        self._file = run.folder / STATE / f"{file_name(name)}.json"
        self._rows: list[Row] = []
        self.failed = False
        saved = (readable(read_json, self._file) or {}) if run.resumed else {}
        keep = {key: saved.get(key, getattr(run, key)) for key in ("began", "name", "group")}
        # A logger that the earlier run did not have begins anew.
        run = replace(run, **keep, saved=saved, resumed=bool(saved))
        self._state = {"round": -1, **saved, **keep}
        try:
            self._state |= logger.begin(run)
            self._save()
        except LoggerError as error:
            raise LoggerError(f"logger {name}: {error}") from error
        except Exception as error:  # a tool's code can raise anything
            said = one_line(described(error))
            raise LoggerError(f"logger {name} cannot begin: {said}") from error

    def log(self, rows: Sequence[Row]) -> None:
        """Log new rows, after those that it could not log earlier."""
        try:
            for row in rows:
                if row["round"] > (self._rows[-1] if self._rows else self._state)["round"]:
                    self._rows.append(row)
            if self._rows:
                self._logger.log(self._rows)
                self._state["round"] = self._rows[-1]["round"]
                self._rows = []
                self._save()
        except Exception as error:  # a tool's code can raise anything
            self._warn(error)

    def finish(self, ended: Ended, result: Row) -> None:
        """End the log; tell how many rows it lacks."""
        if self._rows:
            log.warning("logger %s lacks %d rows of this run", self._name, len(self._rows))
        try:
            self._logger.finish(ended, result)
        except Exception as error:  # a tool's code can raise anything
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self.failed:
            log.warning("logger %s: %s; the run goes on", self._name, one_line(described(error)))
        self.failed = True

    def _save(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        replace_file(self._file, json.dumps(self._state), "\n")
