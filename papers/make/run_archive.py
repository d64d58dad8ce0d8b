"""Stores an experiment's finished runs in the repository, and reads them for the pages' tables.

`python -m papers.make.run_archive NAME FOLDER...` reads the runs from sweep folders and writes them
to papers/runs/NAME.json.xz, one run per line. `--show NAME` prints that file as JSON.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from edgewire.report.curves import evenly
from edgewire.report.reader import ResultsError, mistakes_are_lines
from edgewire.report.runs import (
    BESIDE,
    NUMBERS,
    Run,
    expect_numbers,
    expect_result,
    in_order,
    own_numbers,
    read_runs,
    split_overrides,
)
from edgewire.task.metric import ACCURACY, LOSS, Metric, main_of

ROOT = Path(__file__).parents[2]
FOLDER, EXPERIMENTS = Path("papers/runs"), Path("papers/experiments")
ROWS = 101  # the most evaluations in a stored curve: that of the untrained model, and 100 more
# files that no run reads: a change there does not affect its numbers
WITHOUT_EFFECT = (
    *(":!docs", ":!edgewire/report", ":!tests", ":!*.md"),
    *(f":!papers/{folder}" for folder in ("make", "pages", "results", "runs")),
)
# the keys of an evaluation that an archive stores, if the run has them
CURVE = (
    *("round", "accuracy", "train_loss", "uplink_bytes", "downlink_bytes", "virtual_seconds"),
    *("uplink_bytes_float32", "uplink_entries", "uplink_entries_whole"),
)
NOT_MEASURED = {"commit", "cpu"}  # keys that may differ between runs with the same numbers


@cache
def parse_overrides(text: str) -> Mapping[str, str]:
    """Return the overrides in a text such as "a=1 +b=2": key -> value.

    Raises `ValueError` for a word that is no override.
    """
    words = shlex.split(text)
    if wrong := [word for word in words if "=" not in word]:
        raise ValueError(f"{wrong[0]} is not KEY=VALUE")
    return split_overrides(words)


def command(name: str) -> str:
    """Return the command that makes an experiment's runs."""
    return f"python run.py -m experiment={name}"


def archive_file(root: Path, name: str) -> Path:
    """Return the file of an experiment's runs. Raises `ResultsError` for an unknown experiment."""
    if not (root / EXPERIMENTS / f"{name}.yaml").is_file():
        raise ResultsError(f"no experiment {name}: {EXPERIMENTS}/{name}.yaml is not there")
    return root / FOLDER / f"{name}.json.xz"


def read_archive(file: Path) -> list[Run]:
    """Return the stored runs in an archive; an empty list if the file is missing.

    Raises `ResultsError` for a file in another format.
    """
    if not file.is_file():
        return []
    try:
        content = json.loads(lzma.decompress(file.read_bytes()))
        if (of := content["experiment"]) != file.name.partition(".")[0]:
            raise ResultsError(f"{file} holds runs of {of}")
        runs = [stored_run(run) for run in content["runs"]]
    except (ValueError, TypeError, KeyError, AttributeError, lzma.LZMAError) as error:
        raise ResultsError(f"{file} is no file of archived runs: {error!r}") from error
    if len({run.key for run in runs}) != len(runs):
        raise ResultsError(f"{file} holds runs of the same overrides and seed")
    return runs


def stored_run(stored: Mapping[str, Any]) -> Run:
    """Return the run that an archive stores as a JSON object; the run's `result` is this object.

    `stored`: the run's `overrides`, its `seed`, the `commit` of the code, `cpu` (the instruction
    set that torch used, "" if the run did not record it), whether it `diverged`, `NUMBERS`, those
    of `BESIDE` that the run recorded, and the `curve`: a list for each key of `CURVE`, with an
    entry for each stored evaluation. A run whose
    main metric is not the accuracy also has `metrics`, with the main metric, and its numbers.

    Raises `ValueError`, `TypeError` or `KeyError` for a malformed object.
    """
    expect_result(stored)
    head = {"seed": int, "overrides": str, "commit": str, "cpu": str, "diverged": bool}
    result = {"cpu": "", **stored}
    if wrong := [result[key] for key, kind in head.items() if not isinstance(result[key], kind)]:
        raise ValueError(f"{wrong[0]!r} is out of place")
    metric = main_of(stored)
    columns = dict.fromkeys((*CURVE, metric.name))
    curve = {key: list(stored["curve"][key]) for key in columns if key in stored["curve"]}
    if len({len(column) for column in curve.values()}) > 1:
        raise ValueError("a curve with columns of several lengths")
    rows = [dict(zip(curve, row, strict=True)) for row in zip(*curve.values(), strict=True)]
    for row in rows:
        expect_numbers(row, (), list(row))
    result = {
        **{key: result[key] for key in ("overrides", "seed", "commit", "cpu", "diverged")},
        **{key: stored.get(key) for key in NUMBERS},
        **{key: stored[key] for key in BESIDE if stored.get(key) is not None},
        **({} if metric == ACCURACY else _of_metric(stored, metric)),
        "curve": curve,
    }
    return Run(parse_overrides(result["overrides"]), result, lambda: rows)


def _of_metric(stored: Mapping[str, Any], metric: Metric) -> dict[str, Any]:
    known = {metric.name: metric._asdict()} if metric != LOSS else {}
    return {"metrics": known, **{key: stored.get(key) for key in own_numbers(metric)}}


def archived(run: Run, name: str, commit: str) -> Run:
    """Return a run as the archive of experiment `name` stores it.

    `commit`: the commit of the code that made the run.

    Raises `ResultsError` for a run of another experiment, or for a text in place of a number.
    """
    overrides = dict(run.overrides)
    if overrides.pop("experiment", None) != name:
        raise ResultsError(f"{run.folder} was not run with experiment={name}")
    evaluations = run.evaluations()
    rows = evenly(evaluations, ROWS)
    columns = dict.fromkeys((*CURVE, run.metric.name))
    curve = {key: [row.get(key) for row in rows] for key in columns}
    stored = {
        **run.result,
        "overrides": in_order(overrides),
        "commit": commit,
        "cpu": str((run.result.get("versions") or {}).get("cpu", "")),
        "diverged": run.diverged,
        "evaluations": len(evaluations),
        "curve": {key: column for key, column in curve.items() if set(column) - {None}},
    }
    try:
        return stored_run(stored)
    except ValueError as error:
        raise ResultsError(f"{run.folder}: {error}") from error


def merge(old: Iterable[Run], new: Iterable[Run]) -> list[Run]:
    """Return the old and the new runs, sorted by overrides and seed.

    A new run replaces an old run with the same overrides and seed. If both have the same numbers,
    the old run stays, because its commit gave these numbers first.
    """
    runs = {run.key: run for run in old}
    for run in new:
        before = runs.get(run.key)
        if before is None or _measured(before) != _measured(run):
            runs[run.key] = run
    return [runs[key] for key in sorted(runs)]


def _measured(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.result.items() if key not in NOT_MEASURED}


def write_archive(file: Path, name: str, runs: Iterable[Run]) -> None:
    """Write an experiment's stored runs to a file: JSON with a run per line, packed by xz."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f'{{"experiment": {json.dumps(name)}, "command": {json.dumps(command(name))}, "runs": ['
    lines = ",\n".join(json.dumps(run.result) for run in runs)
    file.write_bytes(lzma.compress(f"{head}\n{lines}\n]}}\n".encode(), preset=9))


def commit_of(root: Path) -> str:
    """Return the short hash of HEAD, with a + if files that affect runs have changed since.

    Returns "" without git, or outside of a repository.
    """
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--", *WITHOUT_EFFECT) else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True)
    return done.stdout.decode(errors="replace").strip()


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Store the runs in the folders that the command line names, or show them.

    Returns the exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m papers.make.run_archive", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="of the experiment")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="sweep folders")
    parser.add_argument("--show", action="store_true", help="print the stored runs as JSON")
    asked = parser.parse_args(arguments)
    if asked.show == bool(asked.folders):
        parser.error("name the folders of sweeps, or give --show without folders")
    file = archive_file(root, asked.name)
    if asked.show:
        read_archive(file)  # refuses a damaged file
        print(lzma.decompress(file.read_bytes()).decode(), end="")
        return 0
    found, unfinished = read_runs(asked.folders)
    commit = commit_of(root)
    old = read_archive(file)
    runs = merge(old, [archived(run, asked.name, commit) for run in found])
    write_archive(file, asked.name, runs)
    if twice := len(found) - len({run.key for run in found}):
        print(f"of equal overrides and seed the last run was taken, {twice} were left out")
    changed = sum(run not in old for run in runs)
    print(f"{file}: {len(runs)} runs, {changed} of them new or replaced")
    if unfinished:
        print("unfinished or damaged: " + ", ".join(str(path) for path in unfinished))
    return 0


if __name__ == "__main__":
    sys.exit(main())
