"""A page's table of runs: its definition, filled with the stored runs of its experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from report.columns import (
    COLUMNS,
    NOT_RUN,
    ONE_SEED,
    PAPER_HEAD,
    REMARKS,
    Rendered,
    TableRow,
    remark,
)
from report.errors import ResultsError
from report.format import NOTHING, markdown_table
from report.learning_curve import smoothed
from report.pages.benchmark_table import Origin
from report.pages.definitions import PAPER, RowDefinition, TableDefinition
from report.run_archive import command
from report.runs import Run


@dataclass(frozen=True)
class FilledTable:
    """The definition of a page's table, and all stored runs of the table's experiment."""

    definition: TableDefinition
    runs: Sequence[Run]

    @cached_property
    def by_settings(self) -> dict[str, list[Run]]:
        """A dict from command-line overrides to the runs with them, in the order of their seeds."""
        found: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.key):
            found.setdefault(run.settings, []).append(smoothed(run, self.definition.smooth))
        return found

    def runs_of(self, row: RowDefinition) -> list[Run]:
        """Return the row's runs, in the order of their seeds; none if it has not run."""
        return [
            run
            for overrides in sorted(row.all_overrides)
            for run in self.by_settings.get(overrides, [])
        ]

    def has_run(self) -> bool:
        """Return whether any row has runs."""
        return any(self.runs_of(row) for row in self.definition.rows)

    @cached_property
    def markdown(self) -> str:
        """The table in Markdown. Remarks on rows have their own column."""
        definition = self.definition
        heads = definition.across or [
            PAPER_HEAD if column == PAPER else COLUMNS[column].head.format(**definition.given())
            for column in definition.columns
        ]
        remarks = [remark(self.runs_of(row)) for row in definition.rows]
        more = [REMARKS] if any(remarks) else []
        rows = [
            [row.label, *self._cells(row), *([text] if more else [])]
            for row, text in zip(definition.rows, remarks, strict=True)
        ]
        return markdown_table(["", *heads, *more], rows)

    def sentence(self, name: str, column: str) -> str:
        """Return a cell's text for a sentence. Raises `ResultsError` for an unknown name."""
        if (row := self.definition.row(name)) is None:
            raise ResultsError(f"no row {name}")
        if column in self.definition.across:
            overrides = row.across[self.definition.across.index(column)]
            runs = self.by_settings.get(overrides, [])
            return self._show(runs, self.definition.columns[0]).sentence if runs else NOT_RUN
        if column in ("label", PAPER):
            return str(getattr(row, column))
        needs = COLUMNS[column].needs if column in COLUMNS else column
        if column not in COLUMNS or (needs and not self.definition.given()[needs]):
            raise ResultsError(f"no column {column}")
        runs = self.runs_of(row)
        return self._show(runs, column).sentence if runs else NOT_RUN

    def origin(self) -> Origin:
        """Return where the values are from, for the text below the table."""
        definition = self.definition
        words = [command(definition.experiment), definition.beside, "dataset.root=FOLDER"]
        runs = [run for row in definition.rows for run in self.runs_of(row)]
        settings = set().union(*(row.all_overrides for row in definition.rows))
        ran = settings & self.by_settings.keys()
        return Origin(
            command=" ".join(filter(None, words)),
            commits=sorted({run.result["commit"] for run in runs} - {""}),
            cpus=sorted({run.result["cpu"] for run in runs} - {""}, reverse=True),
            all_know_cpu=all(run.result["cpu"] for run in runs),
            seeds=sorted({len(self.by_settings[each]) for each in ran}),
            has_blank=bool(definition.across) and ran != settings,
        )

    def _cells(self, row: RowDefinition) -> list[str]:
        if self.definition.across:
            return self._across(row)
        runs = self.runs_of(row)
        return [
            (row.paper or NOTHING)
            if column == PAPER
            else self._show(runs, column).cell
            if runs
            else ""
            for column in self.definition.columns
        ]

    def _across(self, row: RowDefinition) -> list[str]:
        """Return a row's cells in a table whose columns show runs with different overrides.

        In a search (of a learning rate) the highest cell is bold.
        """
        (column,) = self.definition.columns
        found = [self.by_settings.get(overrides, []) for overrides in row.across]
        cells = [
            self._show(runs, column).cell.removesuffix(ONE_SEED) if runs else "" for runs in found
        ]
        if not self.definition.search:
            return cells
        estimates = [TableRow(runs).estimate("accuracy") for runs in found]
        means = [0 if each is None else each.mean for each in estimates]
        return [
            f"**{c}**" if c and m == max(means) else c for c, m in zip(cells, means, strict=True)
        ]

    def _show(self, runs: Sequence[Run], column: str) -> Rendered:
        definition = self.definition
        other = definition.row(definition.against)
        against = self.runs_of(other) if other else []
        return COLUMNS[column].show(TableRow(runs, against, definition.reach, definition.after))
