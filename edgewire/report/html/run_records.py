"""The outcome of every run, also of those without a result, and the command to go on with it."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewire.report.errors import ResultsError
from edgewire.report.files.reader import folders, lines_of, open_file, parse_json, readable
from edgewire.report.format import NOTHING, one_line
from edgewire.report.metric import ACCURACY, LOSS, MainMetric, fit_to_show, main_of
from edgewire.report.runs import (
    HISTORY,
    HISTORY_NUMBERS,
    HYDRA,
    OVERRIDES,
    RESULT,
    SURE,
    Row,
    Run,
    expect_numbers,
    failed_line,
    in_order,
    number,
    read_history,
    read_overrides,
    read_result,
    with_effect,
)

CHECKPOINT = "checkpoint"
NOT_FINISHED = "not finished"  # a key of unfinished runs: no finished run is in their group
# before the run has a result, these names tell that a value is a share of which more is better
SHARES = ("accuracy", "top5", "auroc", "iou")


@dataclass(frozen=True)
class RunRecord:
    """A line of the table of all runs. `outcome`: "finished", or why the run did not finish.

    `row`: the run's result, or its last row. `command`: repeats a finished run, and resumes or
    repeats another. `value`: of the main metric. `fine`: whether nothing needs a look.
    """

    folder: Path
    group: str
    seed: str
    outcome: str
    row: Row
    command: str = NOTHING
    value: str = NOTHING
    fine: bool = False

    def count(self, key: str) -> float | None:
        """Return a number of the run; None if it is missing or no number."""
        return number(self.row.get(key))


def repeat_command(folder: Path) -> str:
    """Return the command that starts a new run with a run's configuration."""
    # Hydra reads a relative path as one beside run.py
    return f"python run.py --config-path {shlex.quote(str((folder / HYDRA).resolve()))} " + (
        "--config-name config"
    )


def ended_early(result: Row) -> bool:
    """Return whether a run has ended before its planned rounds, or updates."""
    done, planned = number(result.get("round")), number(result.get("rounds"))
    return done is not None and planned is not None and done < planned


def record_of(run: Run, label: str | None, damaged: bool) -> RunRecord:
    """Return the line of a run with a result.

    `label`: its group's; None if a later run with the same seed counts. `damaged`: whether its
    history cannot be read.
    """
    assert run.folder is not None
    result = run.result
    outcome = "finished"
    if run.diverged:
        why = result.get("stopped")
        outcome = f"diverged: {one_line(why)}" if why else "diverged"
    elif ended_early(result):
        outcome = f"ended at {result['round']:g} of {result['rounds']:g}"
    elif label is None:
        outcome = "repeated: a later run with this seed counts"
    if damaged:
        outcome += f", but its {HISTORY} cannot be read: it has no curves and no times over links"
    group = label or one_line(in_order(run.overrides)) or NOTHING
    value = run.metric.text(number(result.get(run.metric.name)))
    fine, command = outcome == "finished", repeat_command(run.folder)
    return RunRecord(run.folder, group, str(run.seed), outcome, result, command, value, fine)


def unfinished_record(folder: Path) -> RunRecord:
    """Return the line of a run without a usable result: why, and how to go on."""
    overrides = readable(read_overrides, folder) or {}
    seed = overrides.pop("seed", NOTHING)
    label = one_line(in_order(with_effect(overrides))) or NOTHING
    command = repeat_command(folder)
    if (folder / CHECKPOINT).is_file():
        command = f"python run.py {shlex.quote(f'resume={folder.resolve()}')}"
    why, last = why_unfinished(folder), _last_row(folder)
    return RunRecord(folder, label, one_line(seed), why, last, command)


def run_so_far(folder: Path) -> Run | None:
    """Return what an unfinished run has done so far; None if its files do not tell it.

    Its result is the last row of its history. The key `NOT_FINISHED` is among its overrides.
    """
    try:
        overrides = read_overrides(folder)
        result = read_result(folder) if (folder / RESULT).exists() else {}
        last = _last_row(folder)
        metric = main_of(result) if result else metric_in(last)
        rows = read_history(folder / HISTORY, metric.name)
        if len(rows) < 2:  # nothing has been sent
            return None
        known = next((r for r in reversed(rows) if r.get(metric.name) is not None), {})
        told = {"metrics": {metric.name: metric._asdict()}} if metric.name != "loss" else {}
        found = {
            **dict.fromkeys(SURE, 0),
            "seed": int(overrides.get("seed", 0)),
            **told,
            **rows[-1],
            metric.name: known.get(metric.name),
            **result,
        }
        expect_numbers(found)
    except (OSError, ValueError, KeyError, TypeError, ResultsError):
        return None
    return Run({**with_effect(overrides), NOT_FINISHED: "yes"}, found, lambda: rows, folder)


def metric_in(row: Row) -> MainMetric:
    """Return the main metric of a run without a result: the first name after `loss` in a row."""
    names = list(row)
    place = names.index("loss") + 1 if "loss" in names else len(names)
    name = names[place] if place < len(names) else LOSS.name
    if name == "accuracy":
        return ACCURACY
    value = row.get(name)
    if (
        name in HISTORY_NUMBERS
        or not fit_to_show(name)
        or (value is not None and number(value) is None)
    ):
        return LOSS
    return MainMetric(name, name in SHARES, name in SHARES)


def without_settings(tops: Sequence[Path]) -> list[Path]:
    """Return the folders that hold a result and no overrides, so that nothing can be grouped."""
    found = {f.resolve() for top in tops for f, names in folders(top) if RESULT in names}
    return sorted(folder for folder in found if not (folder / OVERRIDES).exists())


def foreign_record(folder: Path) -> RunRecord:
    """Return the line of a folder that holds a result and no overrides."""
    result = readable(read_result, folder) or {}
    why = f"left out: it has no {OVERRIDES}"
    seed = one_line(str(result.get("seed", NOTHING)))
    return RunRecord(folder, NOTHING, seed, why, result)


def why_unfinished(folder: Path) -> str:
    """Return why a run has no usable result, in one line."""
    if (line := failed_line(folder)) is not None:
        return one_line(f"failed: {line}")
    try:
        stopped = read_result(folder).get("stopped")
    except FileNotFoundError:
        return f"no {RESULT}: it still runs, or was killed"
    except (OSError, ValueError):
        return f"{RESULT} is damaged"
    return one_line(f"stopped: {stopped}") if stopped else f"{RESULT} is damaged"


def _last_row(folder: Path) -> Row:
    try:
        with open_file(folder / HISTORY) as opened:
            found = parse_json(deque(lines_of(opened), maxlen=1)[0])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}
