"""Prints a sweep as a table (Markdown or JSON): one row for runs that differ in the seed only.

`python -m edgewire.report.table FOLDER... [--rows KEY,KEY] [--smooth N] [--reach PERCENT] [--wide]
[--json]`
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewire.report.columns import COLUMNS, TableRow, main_columns, payload, plain, sent, until_all
from edgewire.report.errors import ResultsError, mistakes_are_lines
from edgewire.report.format import NOTHING, markdown_table, whole
from edgewire.report.learning_curve import smoothed
from edgewire.report.metric import ACCURACY, LOSS
from edgewire.report.runs import Group, group_runs, read_runs, varying
from edgewire.report.sweep_table import SHOWN, WIDTH

SWEEP = [name for name in COLUMNS if name.startswith("sweep: ")]
# columns that are left out if no run has a value
OPTIONAL = (
    *("sweep: accuracy", "sweep: best accuracy", "sweep: top5"),
    *("sweep: reached", "sweep: uplink until"),
    *("sweep: virtual time", "sweep: time a round"),
)
SHARES = ("accuracy", "best_accuracy", "top5")  # in JSON with their spread over the seeds


def markdown(
    groups: Sequence[Group],
    keys: Sequence[str],
    rows: Sequence[TableRow],
    width: int | None = None,
) -> tuple[str, int]:
    """Return a Markdown table, and how many columns were left out.

    The table has a row for each group of runs that differ in the seed. `rows`: the runs of each
    group. The group's values of `keys` name its row. `width`: the most characters of a line;
    columns of less importance that do not fit are left out. None: no column is left out.
    """
    columns = {name: COLUMNS[name] for name in SWEEP}
    for metric in dict.fromkeys(run.metric for row in rows for run in row.runs):
        if metric not in (ACCURACY, LOSS):
            columns = main_columns(metric) | columns
    shown = {name: [column.show(row).cell for row in rows] for name, column in columns.items()}
    for name in OPTIONAL:
        if set(shown[name]) == {NOTHING}:
            del shown[name]
    names = [group.name(keys) for group in groups]

    def table(chosen: Sequence[str]) -> str:
        kept = [name for name in shown if name in chosen]
        cells = zip(*(shown[name] for name in kept), strict=True) if kept else [()] * len(names)
        return markdown_table(
            [*keys, *(columns[name].head for name in kept)],
            [[*name, *row] for name, row in zip(names, cells, strict=True)],
            numbers=len(kept),
        )

    if width is None:
        return table(list(shown)), 0
    kept: list[str] = []
    for name in sorted(shown, key=_importance):
        if not kept or max(map(len, table([*kept, name]).splitlines())) <= width:
            kept.append(name)
    return table(kept), len(shown) - len(kept)


def _importance(column: str) -> int:
    """Return the place of a column among those that fit into a narrow table."""
    known = ("sweep: runs", "sweep: reached", "sweep: uplink until", *SHOWN)
    if column in known:
        return 2 * known.index(column)
    metric = column.removeprefix("sweep: ")
    others = ("loss", "top5", "updates", "failed", "payload", "time a round")
    extra = metric.startswith("best") or metric in others
    return 1 if not extra else 2 * len(known)


def as_json(
    groups: Sequence[Group],
    keys: Sequence[str],
    rows: Sequence[TableRow],
    unfinished: Sequence[Path],
) -> str:
    """Return each group's numbers as JSON, with every seed's accuracies."""
    named = [
        {"overrides": {key: group.overrides[key] for key in keys if key in group.overrides}}
        | numbers(row)
        for group, row in zip(groups, rows, strict=True)
    ]
    folders = {"diverged": diverged(groups), "unfinished": unfinished}
    listed = {name: [str(path) for path in paths] for name, paths in folders.items()}
    return json.dumps({"rows": named, **listed}, indent=2)


def numbers(row: TableRow) -> dict[str, Any]:
    """Return the numbers of a row, most of them means over its runs; None for an unknown number."""
    mean = row.mean
    shares: dict[str, Any] = {}
    mains = (run.metric.name for run in row.runs)
    for key in dict.fromkeys([*SHARES, *(key for n in mains for key in (n, f"best_{n}"))]):
        found = row.estimate(key)
        shares[key] = mean(key)
        shares[f"{key}_std"] = None if found is None else found.std
        shares[f"{key}_by_seed"] = [run.result.get(key) for run in row.runs]
    return {
        "runs": len(row.runs),
        "seeds": [run.seed for run in row.runs],
        **shares,
        "loss": mean("loss"),
        "reached_runs": reached_runs(row),
        "reached_round": until_all(row, "round"),
        "reached_uplink_bytes": until_all(row, "uplink_bytes"),
        "uplink_bytes_per_update": mean(payload),
        "uplink_bytes": mean("uplink_bytes"),
        "uplink_sent_bytes": mean(sent("uplink")),
        "uplink_ratio": row.ratio(plain("uplink"), sent("uplink")),
        "downlink_bytes": mean("downlink_bytes"),
        "downlink_sent_bytes": mean(sent("downlink")),
        "downlink_ratio": row.ratio(plain("downlink"), sent("downlink")),
        "client_updates": mean("client_updates"),
        "failures": mean("failures"),
        "seconds": mean("seconds"),
        "virtual_seconds": mean("virtual_seconds"),
        "virtual_seconds_per_round": row.ratio("virtual_seconds", "rounds"),
    }


def reached_runs(row: TableRow) -> int:
    """Return how many runs of a row reach its accuracy."""
    return sum(at is not None for at in row.reached)


def diverged(groups: Sequence[Group]) -> list[Path | None]:
    """Return the folders of the diverged runs. The table's means include these runs."""
    return [run.folder for group in groups for run in group.runs if run.diverged]


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table that the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgewire.report.table", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="sweep folders")
    parser.add_argument("--rows", metavar="KEY,KEY", help="keys that name a row, in this order")
    parser.add_argument(
        "--smooth", type=whole, default=1, metavar="N", help="accuracies: means of N evaluations"
    )
    parser.add_argument(
        "--reach",
        type=float,
        metavar="VALUE",
        help="when, with what uplink, it was got (a share in %%)",
    )
    parser.add_argument(
        "--wide", action="store_true", help="all columns, also beyond 100 characters"
    )
    parser.add_argument("--json", action="store_true", help="JSON in place of Markdown")
    asked = parser.parse_args(arguments)
    runs, unfinished = read_runs(asked.folders)
    groups = group_runs(runs)
    keys = varying(groups) if asked.rows is None else chosen(asked.rows, groups)
    rows = [
        TableRow([smoothed(run, asked.smooth) for run in group.runs], reach=asked.reach)
        for group in groups
    ]
    if asked.json:
        print(as_json(groups, keys, rows, unfinished))
        return 0
    text, left_out = markdown(groups, keys, rows, None if asked.wide else WIDTH)
    print(text)
    if left_out:
        print(f"\n{left_out} more columns: --wide")
    if asked.reach is not None and not any(map(reached_runs, rows)):
        share = all(run.metric.share for row in rows for run in row.runs)
        print(f"\nno run reached {asked.reach:g}{' %' if share else ''}")
    if repeated := len(runs) - sum(len(group.runs) for group in groups):
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
