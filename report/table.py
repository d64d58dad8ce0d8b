"""Prints a sweep as a table (Markdown or JSON): one row for runs that differ in the seed only.

`python -m report.table FOLDER... [--rows KEY,KEY] [--smooth N] [--reach PERCENT] [--json]`
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from report.errors import ResultsError, mistakes_are_lines
from report.format import human_bytes, human_seconds, markdown_row, percent, whole
from report.jobs import Group, Job, group_jobs, read_jobs, varying
from report.learning_curve import Row, first_at, smoothed
from report.summary import whole_bytes

Numbers = dict[str, Any]
SHARES = ("accuracy", "best_accuracy", "top5")  # shown with their spread over the seeds


def numbers(group: Group, smooth: int = 1, reach: float | None = None) -> Numbers:
    """Return the means of runs that differ in the seed; None for a key that no run has.

    `smooth`: the last and the best accuracy are means of this number of consecutive evaluations.
    `reach`: an accuracy in 0..1. The result then has the round and the bytes at which the runs
    reach this accuracy, or None if a run never reaches it.
    """
    results = [job.result for job in group.jobs]
    needed = group.jobs if smooth > 1 or reach is not None else []
    courses = [smoothed(job.history(), smooth) for job in needed]
    if smooth > 1:
        results = [_of(job, rows) for job, rows in zip(group.jobs, courses, strict=True)]
    first = [] if reach is None else [first_at(rows, reach) for rows in courses]

    def mean(key: str) -> float | None:
        return _mean([result.get(key) for result in results])

    row: Numbers = {"runs": len(results), "seeds": [result["seed"] for result in results]}
    for key in SHARES:
        values = [result.get(key) for result in results]
        row[key], row[f"{key}_std"], row[f"{key}_by_seed"] = _mean(values), _std(values), values
    each = [result["uplink_bytes"] / max(result["client_updates"], 1) for result in results]
    return row | {
        "loss": mean("loss"),
        "reached_runs": sum(row is not None for row in first),
        "reached_round": _of_all(first, "round"),
        "reached_uplink_bytes": _of_all(first, "uplink_bytes"),
        "uplink_bytes_per_update": fmean(each),
        "uplink_bytes": mean("uplink_bytes"),
        "uplink_sent_bytes": fmean(whole_bytes(result, "uplink")[0] for result in results),
        "uplink_ratio": _compression_ratio(results, "uplink"),
        "downlink_bytes": mean("downlink_bytes"),
        "downlink_sent_bytes": fmean(whole_bytes(result, "downlink")[0] for result in results),
        "downlink_ratio": _compression_ratio(results, "downlink"),
        "client_updates": mean("client_updates"),
        "failures": mean("failures"),
        "seconds": mean("seconds"),
        "virtual_seconds": (virtual := mean("virtual_seconds")),
        "virtual_seconds_per_round": None if virtual is None else virtual / results[0]["rounds"],
    }


def _of(job: Job, rows: list[Row]) -> Numbers:
    """Return a run's result, with the last and the best accuracy replaced by those of `rows`.

    `rows`: evaluations with smoothed accuracies.
    """
    accuracies = [row["accuracy"] for row in rows]
    last = accuracies[-1] if accuracies else None
    return job.result | {"accuracy": last, "best_accuracy": max(accuracies, default=None)}


def _present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    present = _present(values)
    return fmean(present) if present else None


def _of_all(rows: Sequence[Numbers | None], key: str) -> float | None:
    """Return the mean of `key` over rows; None if there are no rows, or if a row is None."""
    present = [row[key] for row in rows if row is not None]
    return fmean(present) if present and len(present) == len(rows) else None


def _std(values: Sequence[float | None]) -> float | None:
    present = _present(values)
    return stdev(present) if len(present) > 1 else None


def _compression_ratio(results: Sequence[Numbers], way: str) -> float | None:
    """Return the bytes that Flower would have sent, divided by the bytes sent; None if unknown."""
    sent, plain = (sum(each) for each in zip(*(whole_bytes(r, way) for r in results), strict=True))
    return plain / sent if plain and sent else None


def _share(key: str) -> Callable[[Numbers], str]:
    def text(row: Numbers) -> str:
        mean, std = row[key], row[f"{key}_std"]
        return percent(mean) if std is None else f"{100 * mean:.2f} ± {100 * std:.2f} %"

    return text


def _text(key: str, form: Callable[[float], str]) -> Callable[[Numbers], str]:
    return lambda row: "-" if row[key] is None else form(row[key])


COLUMNS: dict[str, Callable[[Numbers], str]] = {
    "runs": lambda row: str(row["runs"]),
    "accuracy": _share("accuracy"),
    "best accuracy": _share("best_accuracy"),
    "top5": _share("top5"),
    "loss": _text("loss", "{:.4g}".format),
    "reached at": _text("reached_round", "{:.10g}".format),
    "payloads until then": _text("reached_uplink_bytes", human_bytes),
    "payload an update": _text("uplink_bytes_per_update", human_bytes),
    "sent up": _text("uplink_sent_bytes", human_bytes),
    "compression ratio up": _text("uplink_ratio", "{:.2f}".format),
    "sent down": _text("downlink_sent_bytes", human_bytes),
    "compression ratio down": _text("downlink_ratio", "{:.2f}".format),
    "updates": _text("client_updates", "{:.10g}".format),
    "failed": _text("failures", "{:.10g}".format),
    "time": _text("seconds", human_seconds),
    "virtual time": _text("virtual_seconds", human_seconds),
    "a round": _text("virtual_seconds_per_round", human_seconds),
}

# Columns that are left out if no run has a value, with their functions.
OPTIONAL = {
    "top5": "top5",
    "reached at": "reached_round",
    "payloads until then": "reached_uplink_bytes",
    "virtual time": "virtual_seconds",
    "a round": "virtual_seconds",
}


def markdown(groups: Sequence[Group], keys: Sequence[str], rows: Sequence[Numbers]) -> str:
    """Return a Markdown table with a row for each group of runs that differ in the seed.

    `rows`: each group's `numbers`. The group's values of `keys` name its row.
    """
    columns = dict(COLUMNS)
    for column, key in OPTIONAL.items():
        if all(row[key] is None for row in rows):
            del columns[column]
    lines = [
        [*keys, *columns],
        ["---"] * len(keys) + ["---:"] * len(columns),
        *(
            [*group.name(keys), *(text(row) for text in columns.values())]
            for group, row in zip(groups, rows, strict=True)
        ),
    ]
    return "\n".join(markdown_row(line) for line in lines)


def as_json(
    groups: Sequence[Group],
    keys: Sequence[str],
    rows: Sequence[Numbers],
    unfinished: Sequence[Path],
) -> str:
    """Return each group's means (`rows`) as JSON, with every seed's accuracies."""
    named = [
        {"overrides": {key: group.overrides[key] for key in keys if key in group.overrides}} | row
        for group, row in zip(groups, rows, strict=True)
    ]
    folders = {"diverged": diverged(groups), "unfinished": unfinished}
    listed = {name: [str(path) for path in paths] for name, paths in folders.items()}
    return json.dumps({"rows": named, **listed}, indent=2)


def diverged(groups: Sequence[Group]) -> list[Path]:
    """Return the folders of the diverged runs. The table's means include these runs."""
    return [job.folder for group in groups for job in group.jobs if job.diverged]


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table that the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m report.table", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="sweep folders")
    parser.add_argument("--rows", metavar="KEY,KEY", help="keys that name a row, in this order")
    parser.add_argument(
        "--smooth", type=whole, default=1, metavar="N", help="accuracies: means of N evaluations"
    )
    parser.add_argument(
        "--reach", type=float, metavar="PERCENT", help="add when, and with what uplink, it was got"
    )
    parser.add_argument("--json", action="store_true", help="JSON in place of Markdown")
    asked = parser.parse_args(arguments)
    jobs, unfinished = read_jobs(asked.folders)
    groups = group_jobs(jobs)
    keys = varying(groups) if asked.rows is None else chosen(asked.rows, groups)
    reach = None if asked.reach is None else asked.reach / 100
    rows = [numbers(group, asked.smooth, reach) for group in groups]
    if asked.json:
        print(as_json(groups, keys, rows, unfinished))
        return 0
    print(markdown(groups, keys, rows))
    if reach is not None and not any(row["reached_runs"] for row in rows):
        print(f"\nno run reached {asked.reach:g} %")
    if repeated := len(jobs) - sum(len(group.jobs) for group in groups):
        print(f"\n{repeated} repeated with the same seed: the last counts")
    for name, folders in (("diverged", diverged(groups)), ("unfinished or damaged", unfinished)):
        if folders:
            print(f"\n{name}: " + ", ".join(str(path) for path in folders))
    return 0


def chosen(rows: str, groups: Sequence[Group]) -> list[str]:
    """Return the keys that `--rows` names. Raises `ResultsError` for a key that no run has."""
    keys = rows.split(",")
    known = sorted({key for group in groups for key in group.overrides})
    if unknown := [key for key in keys if key not in known]:
        raise ResultsError(f"no run has a word {unknown[0]}=; there are: {', '.join(known)}")
    return keys


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command silently
    sys.exit(main())
