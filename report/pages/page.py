"""Makes a page of results in Markdown: its definition with the numbers of the stored runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from report.errors import ResultsError
from report.format import markdown_row, wrap
from report.learning_curve import smoothed_run
from report.measured import Measured
from report.pages.benchmark_table import (
    BenchmarkTable,
    FilledBenchmarkTable,
    command_and_commits,
)
from report.pages.definitions import (
    PAPER,
    PICTURES,
    POINTS,
    PageDefinition,
    RowDefinition,
    TableDefinition,
)
from report.pages.table_columns import (
    COLUMNS,
    FAILED_REPLIES,
    FAILED_REPLY,
    NOT_RUN,
    NOTHING,
    ONE_SEED,
    PAPER_HEAD,
    REMARKS,
    Rendered,
    RowContext,
    remark,
)
from report.run_archive import ArchivedRun, command

HEAD = "<!-- Written by `python -m report.results` from report/pages/{name}.yaml. -->"
# Explanations at the end of a page. Each is there only if a table of the page needs it.
INTERVAL = "± is half of a 95 % interval (Student's t over the seeds)."
POINTS_AGAINST = (
    'The column "difference from X, points" shows the accuracy minus that of row X, in percentage'
    " points. The difference is the mean over pairs of runs with the same seed."
    ' "Noise" means that the interval of this mean contains zero. The true difference may still be'
    " as large as the interval allows. If the interval does not contain zero, the text says"
    ' "above" or "below". The intervals are not corrected for multiple comparisons: without any'
    " true difference, about one interval in twenty would not contain zero."
)
BYTES = (
    '"Bytes up" are sent by all nodes together in the whole run, and "bytes down" by the server.'
)
COMPRESSION_RATIO = (
    'The "compression ratio" is the bytes that Flower sends for the same content without'
    " compression, divided by the bytes sent."
)
FAILED = (
    "A failed reply is one that the server could not use, for example a lost reply. The number of"
    " failed replies is the sum over all runs of the row."
)
DIVERGED = (
    "[Files of a run](../run-files.md#keys-of-resultjson-only) defines when a run has diverged."
)
BARS = "The bars in the picture show 95 % intervals."
SINGLE_SEED = "Runs: one seed."
BANDS = "Lines are means over the seeds. Bands show the range from the lowest to the highest seed."
REFERENCE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class FilledTable:
    """The definition of a page's table, and all stored runs of the table's experiment."""

    definition: TableDefinition
    runs: Sequence[ArchivedRun]

    @cached_property
    def by_overrides(self) -> dict[str, list[ArchivedRun]]:
        """A dict from command-line overrides to the runs with them, in the order of their seeds."""
        found: dict[str, list[ArchivedRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.key):
            found.setdefault(run.overrides, []).append(smoothed_run(run, self.definition.smooth))
        return found

    def runs_of(self, row: RowDefinition) -> list[ArchivedRun]:
        """Return the row's runs, in the order of their seeds; none if it has not run."""
        return [
            run
            for overrides in sorted(row.all_overrides)
            for run in self.by_overrides.get(overrides, [])
        ]

    def across(self, row: RowDefinition) -> list[str]:
        """Return a row's cells in a table whose columns show runs with different overrides.

        In a search (of a learning rate) the highest cell is bold.
        """
        found = [self.by_overrides.get(overrides, []) for overrides in row.across]
        cells = [self._shown(runs).cell.removesuffix(ONE_SEED) if runs else "" for runs in found]
        if not self.definition.search:
            return cells
        means = [
            fmean(run.numbers["accuracy"] or 0 for run in runs) if runs else 0 for runs in found
        ]
        return [
            f"**{c}**" if c and m == max(means) else c for c, m in zip(cells, means, strict=True)
        ]

    def _shown(self, runs: Sequence[ArchivedRun]) -> Rendered:
        """Return the measure that a table with `across` shows in all columns, for these runs."""
        (column,) = self.definition.columns
        definition = self.definition
        return COLUMNS[column].show(RowContext(runs, (), definition.reach, definition.after))

    def has_run(self) -> bool:
        """Return whether any row has runs."""
        return any(self.runs_of(row) for row in self.definition.rows)

    def beside(self, row: RowDefinition) -> RowContext:
        """Return the row's runs, the runs of the row to compare with, and the table's settings."""
        definition = self.definition
        other = definition.row(definition.against)
        against = self.runs_of(other) if other else ()
        return RowContext(self.runs_of(row), against, definition.reach, definition.after)

    def sentence(self, name: str, column: str) -> str:
        """Return a row's value for a sentence. Raises `ResultsError` for an unknown name."""
        if (row := self.definition.row(name)) is None:
            raise ResultsError(f"no row {name}")
        if column in self.definition.across:
            overrides = row.across[self.definition.across.index(column)]
            runs = self.by_overrides.get(overrides, [])
            return self._shown(runs).sentence if runs else NOT_RUN
        if column in ("label", PAPER):
            return str(getattr(row, column))
        needs = COLUMNS[column].needs if column in COLUMNS else column
        if column not in COLUMNS or (needs and not self.definition.given()[needs]):
            raise ResultsError(f"no column {column}")
        return COLUMNS[column].show(self.beside(row)).sentence if self.runs_of(row) else NOT_RUN

    def lines(self) -> list[str]:
        """Return the table as lines of Markdown."""
        definition = self.definition
        heads = list(definition.across) or [
            PAPER_HEAD if column == PAPER else COLUMNS[column].head.format(**definition.given())
            for column in definition.columns
        ]
        rows = [self._row(row) for row in definition.rows]
        if any(row[-1] for row in rows):  # remarks on rows have their own column
            heads.append(REMARKS)
        else:
            rows = [row[:-1] for row in rows]
        lines = [["", *heads], ["---"] * (len(heads) + 1), *rows]
        return [markdown_row(line) for line in lines]

    def _row(self, row: RowDefinition) -> list[str]:
        runs = self.runs_of(row)
        if self.definition.across:
            return [row.label, *self.across(row), remark(runs)]
        cells = [row.label]
        for column in self.definition.columns:
            if column == PAPER:
                cells.append(row.paper or NOTHING)
            else:
                cells.append(COLUMNS[column].show(self.beside(row)).cell if runs else "")
        return [*cells, remark(runs)]

    def origin(self) -> str:
        """Return the sentences below the table: the runs' command, commits, CPUs and seeds."""
        rows = [run for row in self.definition.rows for run in self.runs_of(row)]
        overrides = [
            command(self.definition.experiment),
            self.definition.beside,
            "dataset.root=FOLDER",
        ]
        said = [
            command_and_commits(" ".join(filter(None, overrides)), {run.commit for run in rows})
        ]
        kinds = sorted({run.cpu for run in rows} - {""}, reverse=True)
        if kinds:
            some = "; some runs did not record it" if any(not run.cpu for run in rows) else ""
            said.append(f"CPU: {' or '.join(kinds)}{some}.")
        said.append(self._seeds())
        if self.definition.smooth > 1:
            said.append(f"Accuracies are means of {self.definition.smooth} successive evaluations.")
        if self.definition.search:
            said.append("The highest accuracy of a row is bold.")
        if any(
            overrides not in self.by_overrides
            for row in self.definition.rows
            for overrides in row.across
        ):
            said.append("Settings with a blank cell were not run.")
        return " ".join(filter(None, said))

    def _seeds(self) -> str:
        """Return the sentence that says how many seeds the cells of the table have."""
        every = set().union(*(row.all_overrides for row in self.definition.rows))
        counts = sorted({len(self.by_overrides[each]) for each in every & set(self.by_overrides)})
        if not counts:
            return ""
        if counts[0] == 1 < counts[-1]:
            return f"Runs: {counts[-1]} seeds; a value without ± is from one seed."
        if counts == [1]:
            return SINGLE_SEED
        return f"Runs: {' or '.join(map(str, counts))} seeds."


Filled = FilledTable | FilledBenchmarkTable


def fill(
    page: PageDefinition,
    kept: Mapping[str, Sequence[ArchivedRun]],
    measured: Mapping[str, Measured],
) -> list[Filled]:
    """Return the page's tables, filled with the runs of experiments or the values of benchmarks."""
    return [
        FilledBenchmarkTable(table, measured[table.benchmark])
        if isinstance(table, BenchmarkTable)
        else FilledTable(table, kept[table.experiment])
        for table in page.tables
    ]


def markdown(page: PageDefinition, tables: Sequence[Filled], shown: Mapping[str, set[str]]) -> str:
    """Return the page in Markdown. Raises `ResultsError` for a text with an unknown name.

    `shown`: for each experiment, the overrides of the runs that the tables of all pages show.
    """
    lines = [HEAD.format(name=page.name), "", f"# {page.title}", ""]
    for text in (page.claim, page.setting):
        lines += [*wrap(filled(page, text, tables)), ""]
    for table in tables:
        if table.definition.title:
            lines += [f"## {table.definition.title}", ""]
        lines += [*table.lines(), "", *wrap(table.origin()), ""]
        if isinstance(table, FilledTable) and table.definition.picture and table.has_run():
            shown_as = PICTURES[table.definition.picture]
            lines += [f"![{shown_as}]({picture_name(page, table.definition)})", ""]
            said = BARS if table.definition.picture == POINTS else BANDS
            lines += [] if SINGLE_SEED in table.origin() else [said, ""]
        if table.definition.note:
            lines += [*wrap(filled(page, table.definition.note, tables)), ""]
    for text in page.notes:
        lines += [*wrap(filled(page, text, tables)), ""]
    of_runs = [table for table in tables if isinstance(table, FilledTable)]
    lines += [*wrap(_explanations(of_runs)), ""]
    runs = {table.definition.experiment: table.runs for table in of_runs}
    for name, of in runs.items():
        lines += _left_over(name, of, shown.get(name, set()))
    return "\n".join(lines).rstrip() + "\n"


def _explanations(tables: Sequence[FilledTable]) -> str:
    """Return the sentences that explain the columns and remarks in a page's tables."""
    columns = {column for table in tables for column in table.definition.columns}
    cells = "\n".join(line for table in tables for line in table.lines())
    needed = {
        INTERVAL: "±" in cells,
        POINTS_AGAINST: bool(columns & {"difference", "points", "best difference"}),
        BYTES: bool(columns & {"uplink", "downlink"}),
        COMPRESSION_RATIO: any(column.startswith("compression ratio") for column in columns),
        FAILED: FAILED_REPLIES in cells or FAILED_REPLY in cells,
        DIVERGED: "diverged" in cells,
    }
    return " ".join(text for text, shown in needed.items() if shown)


def filled(page: PageDefinition, text: str, tables: Sequence[Filled]) -> str:
    """Return a text with numbers in place of `{row.column}` (one table) or `{table.row.column}`.

    Raises `ResultsError` for an unknown name, and for a single brace.
    """
    if {"{", "}"} & set(REFERENCE.sub("", text)):
        raise ResultsError(f"report/pages/{page.name}.yaml: a brace without the other: {text!r}")

    def value(found: re.Match[str]) -> str:
        try:
            return _value(found[1].split("."), tables)
        except ResultsError as error:
            raise ResultsError(f"report/pages/{page.name}.yaml: {found[0]}: {error}") from error

    return REFERENCE.sub(value, text)


def _value(names: Sequence[str], tables: Sequence[Filled]) -> str:
    several = len(tables) > 1
    if len(names) != 2 + several:
        raise ResultsError("must be {table.row.column}" if several else "must be {row.column}")
    found = [table for table in tables if not several or table.definition.id == names[0]]
    if not found:
        raise ResultsError(f"no table {names[0]}")
    return found[0].sentence(names[-2], names[-1])


def picture_name(page: PageDefinition, table: TableDefinition) -> str:
    """Return the name of the file of a table's picture, in the page's folder."""
    return f"{page.name}_{table.id}.png" if len(page.tables) > 1 else f"{page.name}.png"


def _left_over(name: str, runs: Sequence[ArchivedRun], shown: set[str]) -> list[str]:
    """Return Markdown lines that list an experiment's stored runs that no table shows; or [].

    `shown`: the overrides of the runs that some table shows.
    """
    overrides = sorted({run.overrides for run in runs} - shown)
    if not overrides:
        return []
    lines = [f"Stored runs of `{name}` that are in no table:", ""]
    for each in overrides:
        lines += wrap(f"`{each or 'no overrides'}`", "* ", "  ")
    return [*lines, ""]
