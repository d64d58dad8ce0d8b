"""Runs from Python: `train` and `sweep`, for scripts and notebooks.

They take the same overrides as the command line, and use the same code. They return results in
place of printing them, and raise exceptions in place of ending the process.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra

from edgewire.command.exit import CALLER, Failed, RunFailed, Stopped, mistakes_fail
from edgewire.command.hydra_main import run_hydra
from edgewire.command.python_data import data_in
from edgewire.command.run_result import RunResult, SweepResult
from edgewire.command.saved_config import CONTINUE, RESUME, START
from edgewire.command.sweep import SweepEnd
from edgewire.task.override_text import text_of

ONE_RUN = threading.Lock()  # Hydra and Flower have one state in a process


def train(
    *overrides: str,
    data: Any = None,
    target: str | Sequence[str] | None = None,
    progress: bool = True,
    config_dir: Path | str | None = None,
    **values: Any,
) -> RunResult:
    """Make one run and return its result.

    `overrides`: the words of the command line, such as "algorithm=edgewire" and
    "compression.density=0.01". `values`: overrides as keywords, such as `rounds=20`; a class or
    function, as in `model=Net`, takes the place of the group's choice (`model._target_`).
    `resume=FOLDER` resumes a stopped run, and `start=FOLDER` trains the model of a run on in a new
    folder. `data`: a DataFrame, whose column `target` is predicted; or inputs and targets (x, y) as
    arrays or tensors with a row a sample; or several such arrays by name. They are written into the
    run's folder. `progress`: whether to show the run's progress. `config_dir`: a folder with
    further choices of groups, such as `experiment/my_task.yaml`.

    A run that has diverged gives a warning, and its result has `diverged`. Raises `RunFailed` for a
    mistake in the overrides and for a run that fails. Raises `KeyboardInterrupt` if the run is
    stopped; its last note says how to resume the run.
    """
    with mistakes_fail():
        words = [*overrides, *(override_of(key, value) for key, value in values.items())]
    expect_overrides(words)
    own = data_in("hydra.run.dir", words, data, target)
    with mistakes_fail(), own as words, _called(progress) as line:
        run_hydra([*_folder(config_dir), *words])
    if line:
        warnings.warn(line[0], stacklevel=2)
    assert CALLER.folder is not None
    return RunResult(CALLER.folder, {each.__module__ for each in values.values() if callable(each)})


def sweep(
    *overrides: str,
    data: Any = None,
    target: str | Sequence[str] | None = None,
    progress: bool = True,
    config_dir: Path | str | None = None,
    **values: Any,
) -> SweepResult:
    """Make a run for each combination of values, and return their results.

    `overrides`: the words of the command line, such as "algorithm=fedavg,edgewire". `values`:
    overrides as keywords. A list, a tuple or a range holds the values of several runs:
    `seed=range(3)`. A run that fails is in the result's `failed`, and the other runs continue.
    `data`, `target`, `progress`, `config_dir`: as in `train`.

    Raises `RunFailed` for a mistake in the overrides, and `KeyboardInterrupt` if it is stopped.
    """
    with mistakes_fail():
        words = [*overrides, *(_choices(key, value) for key, value in values.items())]
    expect_overrides(words)
    with mistakes_fail(), data_in("hydra.sweep.dir", words, data, target) as words:
        return run_sweep([*_folder(config_dir), *words], progress)


def run_sweep(words: Sequence[str], progress: bool = True, *, shell: bool = False) -> SweepResult:
    """Run a sweep of Hydra's words, options first, as `sweep` does; `shell`: for a command."""
    SweepEnd.folder = None
    with _called(progress, shell):
        run_hydra(["--multirun", *words])
    if SweepEnd.folder is None:
        raise RunFailed("no run of the sweep was begun")
    return SweepResult(SweepEnd.folder, SweepEnd.jobs)


def _folder(config_dir: Path | str | None) -> list[str]:
    return [] if config_dir is None else ["--config-dir", str(Path(config_dir).expanduser())]


def expect_overrides(words: Iterable[object]) -> None:
    """Raise `RunFailed` unless all words are overrides, and not options such as `--help`."""
    for word in words:
        text = word if isinstance(word, str) else "-"
        if text.startswith("-") or ("=" not in text and not text.startswith("~")):
            raise RunFailed(f"{word!r} is no override: give 'KEY=VALUE', or call sweep() for -m")


@contextmanager
def _called(progress: bool, shell: bool = False) -> Iterator[list[str]]:
    """Let the command run in this context without an exit; the list gets a diverged run's line.

    Afterwards loggers, environment variables, Python's path and its random numbers are as before. A
    run changes them for itself and for the processes that it starts.
    """
    line: list[str] = []
    if not ONE_RUN.acquire(blocking=False):
        raise RunFailed("a run is under way in this process: wait for its end, or use a sweep")
    loggers = [logging.root, *map(logging.getLogger, ("edgewire", "flwr"))]
    others = logging.root.manager.loggerDict.values()
    loggers += [each for each in others if isinstance(each, logging.Logger)]
    saved = [(each, [*each.handlers], each.propagate, each.level) for each in loggers]
    variables, path, drawn = dict(os.environ), [*sys.path], random.getstate()
    argv, hydra = sys.argv, GlobalHydra.instance()
    users, hydra.hydra = hydra.hydra, None  # the user's own use of Hydra goes on afterwards
    CALLER.folder = None
    CALLER.python, CALLER.progress, CALLER.shell = True, progress, shell
    try:
        yield line
    except Failed as failed:
        if not failed.diverged:
            raise RunFailed(failed.line) from None
        line.append(failed.line)
    except Stopped as stopped:
        print(stopped.line, file=sys.stderr)
        if shell:
            raise
        stop = KeyboardInterrupt()
        stop.add_note(stopped.line)
        raise stop from None
    finally:
        CALLER.python, CALLER.progress, CALLER.shell = False, True, False
        sys.argv, hydra.hydra = argv, users
        random.setstate(drawn)
        sys.path[:] = path
        os.environ.update(variables)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        for each, handlers, propagate, level in saved:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)
        if process := sys.modules.get("edgewire.task.process"):
            process.release_process()
        ONE_RUN.release()


def override_of(key: str, value: Any) -> str:
    """Return the override that sets a key to a Python value."""
    if key in (RESUME, CONTINUE, START):  # Hydra does not see them, and the command wants no quotes
        return f"{key}={value}"
    if callable(value):
        return f"{key}._target_={_name_of(value)}"
    return f"{key}={text_of(value)}"


def _name_of(value: Any) -> str:
    """Return the dotted name of a function or class; it must be importable by this name."""
    name = getattr(value, "__qualname__", "")
    if not name or "<" in name:  # an object, <locals> or <lambda>
        raise RunFailed(
            f"{name or type(value).__name__}: give the class, or a function, defined outside of "
            "other functions, and not an object: model=make_model"
        )
    return f"{value.__module__}.{name}"


def _choices(key: str, value: Any) -> str:
    if hasattr(value, "tolist"):  # an array of numpy's or torch's
        value = value.tolist()
    if not isinstance(value, list | tuple | range):
        return override_of(key, value)
    if not value:
        raise RunFailed(f"{key}=[] names no value: a sweep needs at least one")
    if all(map(callable, value)):
        return f"{key}._target_={','.join(map(_name_of, value))}"
    return f"{key}={','.join(map(text_of, value))}"
