"""Writes a report into a folder: `report.html`, its pictures, and its data as CSV."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from edgewire.report.format import one_line
from edgewire.report.html.canvas import MARKERS, THEME, LegendEntry, Picture
from edgewire.report.html.findings import findings
from edgewire.report.html.node_table import RUNS, notable, read_nodes
from edgewire.report.html.page_tables import (
    nodes_table,
    runs_table,
    settings_table,
    summary_table,
    time_table,
)
from edgewire.report.html.pictures import GREY, draw_all, legend_of
from edgewire.report.html.run_data import COLOURED, ReportRuns, load
from edgewire.report.link_time import named_links
from edgewire.report.runs import Row, Run
from edgewire.report.table import Table, safe_cell

PAGE, HISTORIES, SUMMARY = "report.html", "histories.csv", "summary.csv"
COLUMNS = 1000  # of a CSV file
TEMPLATE = "report.html.j2"
FILES = Path(__file__).parent
CODE = re.compile("`([^`]*)`")
# SVG paths of the markers of matplotlib's names, in a box from -5 to 5, for the page's legend
SHAPES = {
    "o": "M4 0A4 4 0 1 1-4 0 4 4 0 1 1 4 0Z",
    "s": "M-3.5-3.5H3.5V3.5H-3.5Z",
    "D": "M0-5 5 0 0 5-5 0Z",
    "^": "M0-4.5 4.5 4H-4.5Z",
    "v": "M0 4.5 4.5-4H-4.5Z",
    "P": "M-1.7-4.5H1.7V-1.7H4.5V1.7H1.7V4.5H-1.7V1.7H-4.5V-1.7H-1.7Z",
    "X": "M-4-2-2-4 0-2 2-4 4-2 2 0 4 2 2 4 0 2-2 4-4 2-2 0Z",
    "<": "M-4.5 0 4-4.5V4.5Z",
    ">": "M4.5 0-4-4.5V4.5Z",
    "p": "M0-4.5 4.3-1.4 2.6 3.6H-2.6L-4.3-1.4Z",
    "*": "M0-5 1.2-1.6H4.8L1.9.6 2.9 4 0 1.9-2.9 4-1.9.6-4.8-1.6H-1.2Z",
    "h": "M0-4.5 3.9-2.2V2.2L0 4.5-3.9 2.2V-2.2Z",
}


@dataclass(frozen=True)
class Section:
    """A section of the page: id, head, name in links, explanation, pictures and tables."""

    id: str
    title: str
    short: str
    text: Sequence[str]
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    legend: bool = False


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


def write_report(folders: Sequence[Path], out: Path, title: str = "") -> ReportRuns:
    """Write the report of the runs below some folders into the folder `out`; return the runs.

    Raises `ResultsError` if there is no run, `OSError` if a file cannot be written.
    """
    histories = HistoryFile(out / HISTORIES)
    report = load(folders, histories.add)
    out.mkdir(parents=True, exist_ok=True)  # there is none yet if no run has finished
    histories.write()
    links = named_links()
    nodes = read_nodes(report.coloured)
    pictures = draw_all(report, nodes, links, out)
    main = summary_table(report, links) if report.groups else None
    if main is not None:
        main.write_csv(out / SUMMARY)
    sections = [
        Section("metric", f"Test {report.metric.name} against bytes and rounds", "Metric",
                METRIC, pictures["metric"], legend=True),
        Section("time", "Time over links", "Time", TIME, pictures["time"],
                _known(time_table(report, links)), legend=True),
        Section("bytes", "Bytes", "Bytes", BYTES, pictures["bytes"], legend=True),
        Section("nodes", "Nodes", "Nodes", NODES if nodes else NO_NODES, pictures["nodes"],
                _known(nodes_table(notable(nodes)))),
        Section("settings", "What differs between the runs", "Settings",
                SETTINGS if len(report.groups) > 1 else ONE_GROUP, (),
                _known(settings_table(report))),
        Section("runs", "All runs", "Runs", RUNS_TEXT, (), [runs_table(report.records)]),
    ]  # fmt: skip
    if not report.groups:
        sections = sections[-1:]
    always = ("nodes", "settings")
    sections = [s for s in sections if s.pictures or s.tables or s.id in always]
    page = _render(
        title=one_line(title or default_title(folders)),
        folders=[one_line(str(folder)) for folder in folders],
        written=time.strftime("%Y-%m-%d %H:%M"),
        report=report,
        findings=findings(report, nodes),
        main=main,
        sections=sections,
        section_titles={section.id: section.short.lower() for section in sections},
        legend=legend_of(report.coloured),
        notes=_notes(report),
    )
    (out / PAGE).write_text(page, encoding="utf-8")
    return report


METRIC = (
    "A curve is the mean of a group's seeds. Its band, and the bar of "
    "a point, is the 95 % interval of the mean; of two "
    "seeds it shows the lowest and the highest value, and one seed has no band. A curve ends where "
    "its shortest run ends.",
)
TIME = ("Each time over a link is an estimate from the bytes in the history, by this formula:",)
BYTES = (
    "All bytes of the messages: payloads, EdgeWire's record and the other records. Of a run that "
    "does not tell indices from values, the payload is one part.",
)
NODES = (
    f"From the file nodes.json of the first {RUNS} seeds of each group in colour. Seconds are "
    "virtual if the run has a virtual clock.",
)
NO_NODES = ("These runs have no file nodes.json, so nothing is known of single nodes.",)
SETTINGS = (
    "The resolved configuration of each group's first run. Keys without an effect on results, such "
    "as seed and engine, are left out.",
)
ONE_GROUP = ("All runs have the same settings.",)
RUNS_TEXT = (
    "Runs that did not finish are in groups of their own, marked as not finished. Diverged runs "
    "are in the means of their groups.",
)


def _known(table: Table | None) -> list[Table]:
    return [] if table is None else [table]


def default_title(folders: Sequence[Path]) -> str:
    """Return the title of a report: the last two parts of the folders' paths."""
    names = ["/".join(folder.resolve().parts[-2:]).lstrip("/") for folder in folders]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _notes(report: ReportRuns) -> list[str]:
    """Return what the pictures leave out."""
    notes = []
    able = sum(group.metric == report.metric for group in report.groups)
    if (others := able - COLOURED) > 0:
        drawn = f"the {others} others"
        if others > GREY:
            drawn = f"{GREY} of the {others} others, evenly chosen by it"
        notes.append(
            f"The pictures show the {COLOURED} groups with the best {report.metric.name} in "
            f"colour, and {drawn}, in grey. The tables show all {len(report.groups)} groups."
        )
    if (left := len(report.groups) - able) > 0:
        notes.append(
            f"Groups with another main metric than {report.metric.name} are in the tables only: "
            f"{left} of {len(report.groups)}."
        )
    return notes


def _render(**values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(FILES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters["code"] = lambda text: Markup(CODE.sub(r"<code>\1</code>", escape(text)))
    environment.filters["swatch"] = lambda entry: Markup(swatch(entry))
    entries: list[LegendEntry] = values["legend"]
    return environment.get_template(TEMPLATE).render(
        style=Markup((FILES / "report.css").read_text()),
        script=Markup((FILES / "report.js").read_text()),
        theme=THEME,
        markup=Markup,
        marks=[swatch(entry) for entry in entries],
        **values,
    )


def swatch(entry: LegendEntry) -> str:
    """Return the mark of a legend's entry as a small SVG: a line with a marker, or a box."""
    colour = f"var(--{entry.colour})"
    if not entry.marker:
        box = 'x="-6" y="-5" width="12" height="10" rx="2" stroke="var(--rule)"'
        body = f'<rect {box} fill="{colour}"/>'
        return f'<svg class="swatch" viewBox="-7 -6 14 12" aria-hidden="true">{body}</svg>'
    dash = ' stroke-dasharray="4 2.5"' if entry.dashed else ""
    line = f'<path d="M-13 0H13" stroke="{colour}" stroke-width="2"{dash}/>'
    shape = SHAPES[entry.marker if entry.marker in MARKERS else "o"]
    body = f'{line}<path d="{shape}" fill="{colour}"/>'
    return f'<svg class="mark" viewBox="-14 -6 28 12" aria-hidden="true">{body}</svg>'
