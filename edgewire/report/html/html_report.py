"""Writes a report into a folder: `report.html`, its pictures, and its data as CSV."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewire.report.format import one_line
from edgewire.report.html.canvas import mark_of
from edgewire.report.html.findings import Finding, findings
from edgewire.report.html.page_tables import (
    nodes_table,
    runs_table,
    settings_table,
    summary_table,
    time_table,
)
from edgewire.report.html.pictures import draw_all
from edgewire.report.html.run_data import COLOURED, ReportRuns, load
from edgewire.report.link_time import named_links
from edgewire.report.node_table import RUNS, read_nodes
from edgewire.report.runs import Row, Run
from edgewire.report.table import safe_cell

PAGE, HISTORIES, SUMMARY = "report.html", "histories.csv", "summary.csv"
COLUMNS = 1000  # of a CSV file
TEMPLATE = "report.html.j2"
FILES = Path(__file__).parent


class HistoryFile:
    """A CSV file with a row for each row of each run's history, written while runs are read.

    So a sweep of any size needs little memory.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_suffix(".part")
        self._keys: dict[str, None] = dict.fromkeys(("folder", "group", "seed", "round"))

    def add(self, run: Run, label: str, rows: Sequence[Row]) -> None:
        """Add the history of a run. Lists, such as bytes by segment, are left out.

        After `COLUMNS` different keys further ones are left out, too.

        Raises `OSError` if the file cannot be written.
        """
        head = {"folder": str(run.folder), "group": label, "seed": run.seed}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._part.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            for row in rows:
                flat = head | {k: v for k, v in row.items() if not isinstance(v, list | dict)}
                new = [key for key in flat if key not in self._keys]
                self._keys |= dict.fromkeys(new[: max(COLUMNS - len(self._keys), 0)])
                writer.writerow([safe_cell(flat.get(key, "")) for key in self._keys])

    def write(self) -> None:
        """Put the heads of the columns before the rows. Raises `OSError` as `add`."""
        if not self._part.exists():
            return
        with (
            self._part.open(newline="", encoding="utf-8") as rows,
            self._path.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file)
            writer.writerow([safe_cell(key) for key in self._keys])
            for row in csv.reader(rows):  # rows before a new key have fewer columns
                writer.writerow(row + [""] * (len(self._keys) - len(row)))
        self._part.unlink()


def write_report(
    folders: Sequence[Path], out: Path, title: str = ""
) -> tuple[ReportRuns, list[Finding]]:
    """Write the report of the runs below some folders into the folder `out`.

    Returns the runs, and the answers at the top of the page.

    Raises `ResultsError` if there is no run, `OSError` if a file cannot be written.
    """
    histories = HistoryFile(out / HISTORIES)
    report = load(folders, histories.add)
    out.mkdir(parents=True, exist_ok=True)  # there is none yet if no run has finished
    histories.write()
    links = named_links()
    nodes = read_nodes(report.coloured)
    found = findings(report, nodes)
    main = summary_table(report, links) if report.groups else None
    if main is not None:
        main.write_csv(out / SUMMARY)
    tables = {"runs": runs_table(report.records)}
    if report.groups:
        made = {
            "time": time_table(report, links),
            "nodes": nodes_table(nodes, report.metric, every=bool(report.single)),
            "settings": settings_table(report.coloured),
        }
        tables |= {section: table for section, table in made.items() if table is not None}
    page = _render(
        title=one_line(title or default_title(folders)),
        folders=[one_line(str(folder)) for folder in folders],
        written=time.strftime("%Y-%m-%d %H:%M"),
        report=report,
        findings=found,
        main=main,
        pictures=draw_all(report, nodes, links, out),
        tables=tables,
        legend=[mark_of(group) for group in report.coloured],
        coloured=COLOURED,
    )
    (out / PAGE).write_text(page, encoding="utf-8")
    return report, found


def default_title(folders: Sequence[Path]) -> str:
    """Return the title of a report: the last two parts of the folders' paths."""
    names = ["/".join(folder.resolve().parts[-2:]).lstrip("/") for folder in folders]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _render(**values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FILES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    return environment.get_template(TEMPLATE).render(runs_of_nodes=RUNS, **values)
