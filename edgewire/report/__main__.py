"""Writes a report of runs: one HTML file, its pictures, and its data as CSV.

`python -m edgewire.report FOLDER... [--out FOLDER] [--title TEXT]`; a FOLDER is that of a run or of
a sweep. With `--watch` it writes no files: it serves the page to this machine, also while the runs
go on, until Ctrl-C. docs/reports.md says what the report shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from edgewire.report.html.html_report import PAGE, write_report
from edgewire.report.reader import ResultsError, mistakes_are_lines

FOLDER = "report"  # the report's folder, in that of the runs


def port(text: str) -> int:
    """Return a port's number; a `type` for `argparse`."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, not {text}")
    return int(text)


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report that the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgewire.report", description=__doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="the folder of a run or of a sweep"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where the report is written; default: "
        f"the folder {FOLDER}/ in the first given folder",
    )  # fmt: skip
    parser.add_argument("--title", default="", metavar="TEXT", help="the title of the page")
    parser.add_argument("--watch", action="store_true", help="serve the page while runs go on")
    parser.add_argument(
        "--port", type=port, help="with --watch: the port of the page (default: any that is free)"
    )
    asked = parser.parse_args(arguments)
    for folder in asked.folders:
        # a run to watch need not have begun
        if not (folder.is_dir() or (asked.watch and not folder.exists())):
            raise ResultsError(f"{folder}: no such folder")
    if asked.watch:
        if asked.out:
            parser.error("--watch writes no files, so it takes no --out")
        from edgewire.report.html.watch import watch

        return watch(asked.folders, asked.title, asked.port or 0)
    if asked.port is not None:
        parser.error("--port needs --watch")
    out = asked.out or asked.folders[0] / FOLDER
    report = write_report(asked.folders, out, asked.title)
    _print_table([run.folder for group in report.groups for run in group.runs if run.folder])
    bad = [record for record in report.records if not record.fine]
    if bad:
        print(f"{len(bad)} of {len(report.records)} runs did not finish, diverged or were repeated")
    page = (out / PAGE).resolve()
    print(f"report: {page}")
    print(f"open it: python -m webbrowser {page.as_uri()}")
    return 0


def _print_table(folders: Sequence[Path]) -> None:
    from rich.console import Console

    from edgewire.report.table import WIDTH, sweep_table

    console = Console(width=WIDTH, highlight=False)
    if console.is_terminal and (table := sweep_table(folders)) is not None:
        console.print("", table, "", sep="\n")


if __name__ == "__main__":
    sys.exit(main())
