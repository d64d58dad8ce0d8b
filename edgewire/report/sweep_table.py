"""The table at the end of a sweep: one row for runs that differ in the seed only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from edgewire.report.columns import COLUMNS, TableRow, main_columns
from edgewire.report.errors import ResultsError
from edgewire.report.format import NOTHING
from edgewire.report.metric import ACCURACY
from edgewire.report.runs import group_runs, read_runs, varying

WIDTH = 100  # characters
# After the runs and the main metric; on narrow terminals the last ones are left out.
SHOWN = (
    *("sweep: compression ratio up", "sweep: compression ratio down"),
    *("sweep: uplink", "sweep: downlink", "sweep: virtual time", "sweep: time"),
)
HEADS = {"compression ratio up": "up, ratio", "compression ratio down": "down, ratio"}


def sweep_table(folders: Sequence[Path], width: int = WIDTH) -> Table | None:
    """Return the table of the finished runs in some folders; None if fewer than two have finished.

    A row has its settings, the number of runs, the main metric with its deviation over the seeds,
    how many times fewer bytes than Flower's were sent, the bytes, and the times. Columns that do
    not fit into `width` characters are left out, from the right.
    """
    try:
        runs, _ = read_runs(folders)
    except ResultsError:
        return None
    if len(runs) < 2:
        return None
    groups = group_runs(runs)
    keys = varying(groups)
    rows = [TableRow(list(group.runs)) for group in groups]
    columns = {"sweep: runs": COLUMNS["sweep: runs"]}
    for metric in dict.fromkeys(run.metric for run in runs):
        name = f"sweep: {metric.name}"
        columns[name] = COLUMNS[name] if metric == ACCURACY else main_columns(metric)[name]
    columns |= {name: COLUMNS[name] for name in SHOWN}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    cells = [[row[at] for row in (group.name(keys) for group in groups)] for at in range(len(keys))]
    heads = [key.rpartition(".")[2] for key in keys]
    used = sum(_width(head, column) for head, column in zip(heads, cells, strict=True))
    for head in heads:
        table.add_column(head, overflow="fold")
    for column in columns.values():
        shown, head = [column.show(row).cell for row in rows], HEADS.get(column.head, column.head)
        used += _width(head, shown)
        if set(shown) == {NOTHING} or (used > width and len(table.columns) > len(keys) + 1):
            continue
        table.add_column(head, justify="right", no_wrap=True)
        cells.append(shown)
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _width(head: str, cells: Sequence[str]) -> int:
    return 2 + max(map(len, [head, *cells]))
