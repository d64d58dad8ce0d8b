"""Writes a report into a folder: `report.html`, its pictures, and its data as CSV."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from edgewire.report.format import one_line
from edgewire.report.html.canvas import mark_of
from edgewire.report.html.findings import findings
from edgewire.report.html.page_tables import tables_of
from edgewire.report.html.pictures import draw_all
from edgewire.report.html.run_data import COLOURED, ReportRuns, load
from edgewire.report.link_time import named_links
from edgewire.report.node_table import RUNS, read_nodes
from edgewire.report.reader import readable
from edgewire.report.table import write_csv
from edgewire.task.errors import listed

PAGE, HISTORIES, SUMMARY = "report.html", "histories.csv", "summary.csv"
COLUMNS = 1000  # of a CSV file


def write_histories(report: ReportRuns, path: Path) -> None:
    """Write a CSV file with a row for each row of each run's history, which is read again.

    So a sweep of any size needs little memory. Lists, such as bytes by segment, are left out, and
    so are keys after the first `COLUMNS`. Raises `OSError` if the file cannot be written.
    """
    kept = (row for group in report.groups for rows in group.histories.values() for row in rows)
    found = (key for row in kept for key, each in row.items() if not isinstance(each, list | dict))
    heads = list(dict.fromkeys(["folder", "group", "seed", *found]))[:COLUMNS]
    rows = (
        row | {"folder": str(run.folder), "group": group.label, "seed": run.seed}
        for group in report.groups
        for run in group.runs
        for row in readable(run.history) or []
    )
    write_csv(path, heads, ([row.get(key) for key in heads] for row in rows))


def write_report(
    folders: Sequence[Path], out: Path, title: str = ""
) -> tuple[ReportRuns, dict[str, str]]:
    """Write the report of the runs below some folders into the folder `out`.

    Returns the runs, and the answers at the top of the page by their names.

    Raises `ResultsError` if there is no run, `OSError` if a file cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    report = load(folders)
    out.mkdir(parents=True, exist_ok=True)
    links = named_links()
    nodes = read_nodes(report.coloured)
    found = findings(report, nodes)
    tables = tables_of(report, nodes, links)
    if report.groups:
        write_histories(report, out / HISTORIES)
        tables["summary"].write_csv(out / SUMMARY)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=one_line(title or default_title(folders)),
        folders=[one_line(str(folder)) for folder in folders],
        written=time.strftime("%Y-%m-%d %H:%M"),
        report=report,
        findings=found,
        pictures=draw_all(report, nodes, links, out),
        tables=tables,
        legend=[mark_of(group) for group in report.coloured],
        coloured=COLOURED,
        runs_of_nodes=RUNS,
    )
    (out / PAGE).write_text(page, encoding="utf-8")
    return report, found


def default_title(folders: Sequence[Path]) -> str:
    """Return the title of a report: the last two parts of the folders' paths."""
    names = ["/".join(folder.resolve().parts[-2:]).lstrip("/") for folder in folders]
    return listed(names, 3)
