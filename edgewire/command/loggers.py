"""Makes the loggers of the configuration's group `logger`, for the command's own machine.

The configuration that is sent to a server or to nodes has no loggers
(`edgewire.conf.load.run_config`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from edgewire.command.saved_config import resumes
from edgewire.conf.check import check_target
from edgewire.conf.own_packages import qualified, source_files
from edgewire.conf.schema import Config, ConfigError
from edgewire.report.loggers import LoggedRun, Logger
from edgewire.report.loggers.following import logging_run

KEY = "logger"
DATE = re.compile(r"\d{4}-\d\d-\d\d")


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
    loggers: Mapping[str, Logger], folder: Path, config: str, metric: str
) -> AbstractContextManager[None]:
    """Return the context in which the loggers log this job's run.

    `folder`: the run's folder; `config`: its configuration as JSON; `metric`: its main metric.
    """
    hydra = HydraConfig.get()
    sweep = Path(hydra.sweep.dir).absolute() if hydra.mode is RunMode.MULTIRUN else None
    group = _named(sweep) if sweep else None
    name = f"{group}_{folder.name}" if group else _named(folder)
    run = LoggedRun(
        folder, name, group, metric, json.loads(config), resumes(), saved={}, began=time.time()
    )
    return logging_run(loggers, run)


def _named(folder: Path) -> str:
    """Return a folder's name; DATE_TIME for Hydra's folders, which are DATE/TIME."""
    date = folder.parent.name
    return f"{date}_{folder.name}" if DATE.fullmatch(date) else folder.name
