"""The archive of runs: the numbers of an experiment's finished runs, for the pages' tables.

`python -m report.run_archive NAME FOLDER...` reads the runs from sweep folders and writes them to
docs/results/runs/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from report.errors import ResultsError, mistakes_are_lines
from report.jobs import Job, read_jobs

ROOT = Path(__file__).parents[1]
FOLDER = Path("docs/results/runs")
# keys of a result that the file stores; null if a run lacks the key
NUMBERS = (
    *("rounds", "accuracy", "best_accuracy", "top5", "loss", "uplink_bytes", "downlink_bytes"),
    *("uplink_bytes_float32", "downlink_bytes_float32", "client_updates", "failures"),
    *("seconds", "virtual_seconds", "sparsity", "evaluations"),
)
# keys that every run has: `report.jobs` requires them, and tables divide by them
SURE = (
    *("uplink_bytes", "downlink_bytes", "uplink_bytes_float32", "downlink_bytes_float32"),
    *("client_updates", "failures", "seconds"),
)
CURVE = (
    *("round", "accuracy", "train_loss", "uplink_bytes", "downlink_bytes", "virtual_seconds"),
    *("uplink_bytes_float32", "uplink_entries", "uplink_entries_whole"),
)
ROWS = 101  # the most evaluations in `curve`: that of the untrained model, and 100 more
# files that no run reads: a change there does not affect its numbers
WITHOUT_EFFECT = (":!docs", ":!report", ":!tests", ":!*.md")

Number = float | None


@dataclass(frozen=True)
class ArchivedRun:
    """A stored run: sorted overrides without experiment and seed, results, and learning curve.

    `overrides`: one line. `commit`: the commit of the code. `numbers`: the results. `curve`, the
    learning curve: a list for each measured key of `CURVE`, with an entry for each stored
    evaluation. `cpu`: the instruction set that torch uses, "" if the run did not record it.
    """

    overrides: str
    seed: int
    commit: str
    diverged: bool
    numbers: dict[str, Number]
    curve: dict[str, list[Number]]
    cpu: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """The run's overrides and seed; a newer run with the same key replaces an older one."""
        return self.overrides, self.seed

    def curve_rows(self) -> list[dict[str, Number]]:
        """Return the learning curve as rows (key -> value), one for each stored evaluation."""
        return [
            dict(zip(self.curve, row, strict=True))
            for row in zip(*self.curve.values(), strict=True)
        ]

    def rows(self) -> list[dict[str, Number]]:
        """Return the learning curve as rows (key -> value), one for each evaluation of the run.

        Raises `ResultsError` if not all of the run's evaluations are stored.
        """
        rows = self.curve_rows()
        if (self.numbers.get("evaluations") or 0) > len(rows):
            raise ResultsError(f"{self.overrides}: of its evaluations {len(rows)} are kept")
        return rows

    def line(self) -> str:
        """Return the run as one line of JSON."""
        head = {
            "overrides": self.overrides,
            "seed": self.seed,
            "commit": self.commit,
            "cpu": self.cpu,
        }
        body = {"diverged": self.diverged, **self.numbers, "curve": self.curve}
        return json.dumps(head | body)


def in_order(overrides: Mapping[str, str]) -> str:
    """Return command-line overrides sorted by their keys, quoted as in a shell.

    Values are written as a sweep writes them: `true` as True, 1e-3 as 0.001. A value that Hydra
    cannot parse stays unchanged.
    """
    return shlex.join(f"{key}={_as_in_sweeps(value)}" for key, value in sorted(overrides.items()))


@cache
def _as_in_sweeps(value: str) -> str:
    try:
        word = OverridesParser.create().parse_override(f"key={value}")
        return str(word.get_value_element_as_str())
    except HydraException:
        return value


def command(name: str) -> str:
    """Return the command that makes an experiment's runs."""
    return f"python run.py -m experiment={name}"


def archive_file(root: Path, name: str) -> Path:
    """Return the file of an experiment's runs. Raises `ResultsError` for an unknown experiment."""
    if not (root / "conf" / "experiment" / f"{name}.yaml").is_file():
        raise ResultsError(f"no experiment {name}: conf/experiment/{name}.yaml is not there")
    return root / FOLDER / f"{name}.json"


def archived_run(job: Job, name: str, commit: str) -> ArchivedRun:
    """Return what is stored of a finished run.

    `name`: the run's experiment; `commit`: the commit of the code that made the run.

    Raises `ResultsError` for a job of another experiment, or for a text in place of a number.
    """
    overrides = job.effective_overrides()
    if overrides.pop("experiment", None) != name:
        raise ResultsError(f"{job.folder} was not run with experiment={name}")
    evaluated = [row for row in job.history() if row.get("accuracy") is not None]
    rows = _thinned(evaluated)
    curve = {key: [_finite(row.get(key)) for row in rows] for key in CURVE}
    numbers = {key: _finite(job.result.get(key)) for key in NUMBERS}
    return ArchivedRun(
        in_order(overrides),
        job.result["seed"],
        commit,
        job.diverged,
        numbers | {"evaluations": len(evaluated)},
        {key: column for key, column in curve.items() if set(column) - {None}},
        str((job.result.get("versions") or {}).get("cpu", "")),
    )


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `ROWS` of the rows, evenly spaced, with the first and the last one."""
    if len(rows) <= ROWS:
        return rows
    return [rows[round(at * (len(rows) - 1) / (ROWS - 1))] for at in range(ROWS)]


def _finite(value: Any) -> Number:
    """Return a finite number, None for an infinity or NaN. Raises `ResultsError` for a text."""
    if value is not None and not isinstance(value, int | float):
        raise ResultsError(f"{value!r} stands where a number should")
    return None if value is None or not isfinite(value) else value


def merge(old: Iterable[ArchivedRun], new: Iterable[ArchivedRun]) -> list[ArchivedRun]:
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


def _measured(run: ArchivedRun) -> tuple[Any, ...]:
    return run.diverged, run.numbers, run.curve


def read_archive(file: Path) -> list[ArchivedRun]:
    """Return the stored runs in a file; an empty list if the file is missing.

    Raises `ResultsError` for a file in another format.
    """
    if not file.is_file():
        return []
    try:
        content = json.loads(file.read_text())
        if (of := content["experiment"]) != file.stem:
            raise ResultsError(f"{file} holds runs of {of}")
        runs = [_read_run(run) for run in content["runs"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResultsError(f"{file} is no file of archived runs: {error!r}") from error
    if len({run.key for run in runs}) != len(runs):
        raise ResultsError(f"{file} holds runs of the same overrides and seed")
    return runs


def _read_run(run: Any) -> ArchivedRun:
    """Return a run from its JSON. Raises `ValueError`, `TypeError` or `KeyError` if malformed."""
    numbers = {key: run[key] if key in SURE else run.get(key) for key in NUMBERS}
    curve = {key: list(run["curve"][key]) for key in CURVE if key in run["curve"]}
    values = [*numbers.values(), *(value for column in curve.values() for value in column)]
    kinds: list[tuple[Any, Any]] = [(run["overrides"], str), (run["commit"], str)]
    kinds += [(run["diverged"], bool), (run["seed"], int), (run.get("cpu", ""), str)]
    kinds += [(numbers[key], int | float) for key in SURE]
    kinds += [(value, int | float | None) for value in values]
    wrong = [value for value, kind in kinds if not isinstance(value, kind)]
    if wrong := wrong or [value for value in values if value is not None and not isfinite(value)]:
        raise ValueError(f"{wrong[0]!r} is out of place")
    if len({len(column) for column in curve.values()}) > 1:
        raise ValueError("a curve with columns of several lengths")
    head = run["overrides"], run["seed"], run["commit"], run["diverged"]
    return ArchivedRun(*head, numbers, curve, run.get("cpu", ""))


def write_archive(file: Path, name: str, runs: Iterable[ArchivedRun]) -> None:
    """Write an experiment's runs to a JSON file, one run per line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f'{{"experiment": {json.dumps(name)}, "command": {json.dumps(command(name))}, "runs": ['
    lines = ",\n".join(run.line() for run in runs)
    file.write_text(f"{head}\n{lines}\n]}}\n")


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
    """Store the runs in the folders that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m report.run_archive", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="of the experiment: conf/experiment/NAME.yaml")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="sweep folders")
    asked = parser.parse_args(arguments)
    file = archive_file(root, asked.name)
    jobs, unfinished = read_jobs(asked.folders)
    commit = commit_of(root)
    old = read_archive(file)
    runs = merge(old, [archived_run(job, asked.name, commit) for job in jobs])
    write_archive(file, asked.name, runs)
    if twice := len(jobs) - len(
        {(in_order(job.effective_overrides()), job.result["seed"]) for job in jobs}
    ):
        print(f"of equal overrides and seed the last run was taken, {twice} were left out")
    changed = sum(run not in old for run in runs)
    print(f"{file}: {len(runs)} runs, {changed} of them new or replaced")
    if unfinished:
        print("unfinished or damaged: " + ", ".join(str(path) for path in unfinished))
    return 0


if __name__ == "__main__":
    sys.exit(main())
