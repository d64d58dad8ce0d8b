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

from rich.console import Console

from edgewire.report.html.findings import TRAINED
from edgewire.report.html.html_report import PAGE, write_report
from edgewire.report.html.page_tables import summary_table
from edgewire.report.reader import ResultsError, mistakes_are_lines
from edgewire.report.summary import WIDTH, laid_out, next_lines

FOLDER = "report"  # the report's folder, in that of the runs


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
    parser.add_argument("--quiet", action="store_true", help="print the path of the page only")
    parser.add_argument("--title", default="", metavar="TEXT", help="the title of the page")
    parser.add_argument("--watch", action="store_true", help="serve the page while runs go on")
    parser.add_argument(
        "--port", type=int, help="with --watch: the port of the page (default: any that is free)"
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
    report, rows = write_report(asked.folders, out, asked.title)
    page = (out / PAGE).resolve()
    if asked.quiet:
        print(page)
        return 0
    if TRAINED in rows:
        print(rows.pop(TRAINED))
    if len({group.task for group in report.groups}) > 1:
        rows["tasks"] = "values of several tasks do not compare: give the folders of one task"
    elif report.groups and not report.single:
        table = summary_table(report, brief=True)
        Console(width=WIDTH, highlight=False).print(table.rich())
    browse = f"python -m webbrowser {page.as_uri()}", "the page"
    print("\n".join([*laid_out(rows), *next_lines(rows, browse)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
