"""Reads the results of sweeps from their folders; groups runs that differ only in the seed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import YAMLError  # type: ignore[import-untyped]

from report.errors import ResultsError
from report.overrides import OVERRIDES, overrides_of
from report.summary import read_result

GAVE_UP = "no update could be used"  # `stopped` begins with this in a result
MISSING = "-"  # shown for a key that a group lacks and another group has
# overrides that do not change what a run computes, and the seed
WITHOUT_EFFECT = re.compile(
    r"seed|verbose|checkpoint_every|dataset\.(root|download)|(engine|hydra)([./].*)?"
)
# required keys of a run's result; the values of `MEASURED` may be null
COUNTED = (
    *("seed", "client_updates", "failures", "seconds"),
    *("uplink_bytes", "downlink_bytes", "uplink_bytes_float32", "downlink_bytes_float32"),
)
MEASURED = ("accuracy", "best_accuracy", "loss", "top5", "virtual_seconds")


@dataclass(frozen=True)
class Job:
    """One finished run: its folder, its command-line overrides, its `result.json`."""

    folder: Path
    overrides: dict[str, str]
    result: dict[str, Any]

    def history(self) -> list[dict[str, Any]]:
        """Return the rows of `history.jsonl`, one per round, without a truncated last line.

        Raises `ResultsError` for a line that cannot be read.
        """
        file, rows = self.folder / "history.jsonl", []
        lines = file.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and "round" in row:
                rows.append(row)
            elif number < len(lines):
                raise ResultsError(f"{file}: line {number} cannot be read")
        return rows

    @property
    def diverged(self) -> bool:
        """Whether the run failed: its model diverged, or no update could be used any more.

        Tables include such a run like any other. Without it they would show only successful runs.
        """
        stopped = self.result.get("stopped") or ""
        return bool(self.result.get("diverged")) or stopped.startswith(GAVE_UP)

    def effective_overrides(self) -> dict[str, str]:
        """Return the overrides that affect the result, without the seed."""
        return {k: v for k, v in self.overrides.items() if not WITHOUT_EFFECT.fullmatch(k)}


@dataclass(frozen=True)
class Group:
    """The runs that differ only in the seed, and their common overrides."""

    overrides: dict[str, str]
    jobs: list[Job]

    def name(self, keys: Sequence[str]) -> list[str]:
        """Return the group's values of `keys`; `MISSING` for a key that the group lacks."""
        return [self.overrides.get(key, MISSING) for key in keys]


def read_jobs(folders: Iterable[Path]) -> tuple[list[Job], list[Path]]:
    """Return the finished runs below `folders`, by job number, and the folders of the others.

    A run whose files are damaged counts as unfinished. Raises `ResultsError` if no run has
    finished.
    """
    jobs: list[Job] = []
    unfinished: list[Path] = []
    seen: set[Path] = set()
    for top in folders:
        if not top.is_dir():
            raise ResultsError(f"{top}: no such folder")
        for found in sorted(top.rglob(str(OVERRIDES)), key=_numbers_as_numbers):
            folder = found.parents[1]
            if folder.resolve() in seen:  # `folders` may name a folder and also a folder inside it
                continue
            seen.add(folder.resolve())
            try:
                jobs.append(_read_job(folder))
            except (FileNotFoundError, ValueError, YAMLError):
                unfinished.append(folder)
    if not jobs:
        count = f"; {len(unfinished)} unfinished" if unfinished else ""
        raise ResultsError(f"no finished run in {', '.join(map(str, folders))}{count}")
    return jobs, unfinished


def group_jobs(jobs: Iterable[Job]) -> list[Group]:
    """Return the groups in the order of their first jobs.

    Of several jobs with the same overrides and seed only the last one is used. A repeated run has
    the same seed, and would make the spread over the seeds look smaller than it is.
    """
    groups: dict[frozenset[tuple[str, str]], dict[Any, Job]] = {}
    for job in jobs:
        seeds = groups.setdefault(frozenset(job.effective_overrides().items()), {})
        seeds[job.result["seed"]] = job
    jobs_of = [list(seeds.values()) for seeds in groups.values()]
    return [Group(same[0].effective_overrides(), same) for same in jobs_of]


def varying(groups: Sequence[Group]) -> list[str]:
    """Return the keys whose values differ between the groups, in the order of the overrides."""
    keys: list[str] = []
    for group in groups:
        place = len(keys)
        for key in reversed(group.overrides):
            if key in keys:
                place = keys.index(key)
            else:  # place a key that some groups lack before the key that follows it in the others
                keys.insert(place, key)
    return [key for key in keys if len({group.overrides.get(key) for group in groups}) > 1]


def _read_job(folder: Path) -> Job:
    """Return the finished run in a folder.

    Raises `FileNotFoundError` for a run without a result, `ValueError` for a run that was stopped,
    `YAMLError` or `ValueError` for damaged files.
    """
    result, overrides = read_result(folder), overrides_of(folder)
    if not isinstance(result, dict) or not _complete(result):
        raise ValueError(f"{folder} holds no run")
    job = Job(folder, overrides, result)
    if result.get("stopped") and not job.diverged:
        raise ValueError(f"{folder} stopped before its end")
    return job


def _complete(result: dict[str, Any]) -> bool:
    """Return whether a result has every required key, with numbers where they are required."""
    sure = all(isinstance(result.get(key), int | float) for key in COUNTED)
    perhaps = (result.get(key) for key in MEASURED)
    return sure and all(value is None or isinstance(value, int | float) for value in perhaps)


def _numbers_as_numbers(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts job 10 after job 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.parts]
