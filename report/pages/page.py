"""Makes a page of results in Markdown: its definition with the numbers of the stored runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from report.errors import ResultsError
from report.format import markdown_row, wrap
from report.kept import KeptRun, command
from report.learning_curve import settled
from report.measured import Measured
from report.pages.benchmark_table import BenchmarkTable, FilledBenchmarkTable
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
    NOT_RUN,
    NOTHING,
    ONE_SEED,
    Rendered,
    RowContext,
    remark,
)

HEAD = "<!-- Written by `python -m report.results` from report/pages/{name}.yaml. -->"
MEANS = (
    "± is half of a 95 % interval (Student's t over the seeds). A difference is in points of"
    ' accuracy: the mean of the differences between runs with the same seed. "Noise" means'
    " that the interval of a difference contains zero. The true difference may still be as"
    ' large as the interval allows. "Above" and "below" are not corrected for multiple'
    " comparisons: about one row in twenty differs by chance. Bytes are those of a whole run:"
    ' "up" from all nodes, "down" from the server.'
)
OTHER_CPU = "a CPU not noted"
BARS = "Bars show the intervals."
BANDS = "Lines are means over the seeds. Bands show the range from the lowest to the highest seed."
REFERENCE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class FilledTable:
    """A table and its experiment's runs."""

    definition: TableDefinition
    runs: Sequence[KeptRun]

    @cached_property
    def by_words(self) -> dict[str, list[KeptRun]]:
        """The runs by their overrides, in the order of their seeds."""
        found: dict[str, list[KeptRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.key):
            found.setdefault(run.words, []).append(settled(run, self.definition.smooth))
        return found

    def runs_of(self, row: RowDefinition) -> list[KeptRun]:
        """Return the row's runs, in the order of their seeds; none if it has not run."""
        return [run for words in sorted(row.all_words) for run in self.by_words.get(words, [])]

    def across(self, row: RowDefinition) -> list[str]:
        """Return the row's cells, one per column; in a search the highest is bold."""
        found = [self.by_words.get(words, []) for words in row.across]
        cells = [self._shown(runs).cell.removesuffix(ONE_SEED) if runs else "" for runs in found]
        if not self.definition.search:
            return cells
        means = [
            fmean(run.numbers["accuracy"] or 0 for run in runs) if runs else 0 for runs in found
        ]
        return [
            f"**{c}**" if c and m == max(means) else c for c, m in zip(cells, means, strict=True)
        ]

    def _shown(self, runs: Sequence[KeptRun]) -> Rendered:
        """Return the value of the only column of a table with `across`."""
        (column,) = self.definition.columns
        definition = self.definition
        return COLUMNS[column].show(RowContext(runs, (), definition.reach, definition.after))

    def has_run(self) -> bool:
        """Return whether any row has runs."""
        return any(self.runs_of(row) for row in self.definition.rows)

    def beside(self, row: RowDefinition) -> RowContext:
        """Return the row's runs and those of the row to compare with."""
        definition = self.definition
        other = definition.row(definition.against)
        against = self.runs_of(other) if other else ()
        return RowContext(self.runs_of(row), against, definition.reach, definition.after)

    def sentence(self, name: str, column: str) -> str:
        """Return a row's value for a sentence. Raises `ResultsError` for an unknown name."""
        if (row := self.definition.row(name)) is None:
            raise ResultsError(f"no row {name}")
        if column in self.definition.across:
            words = row.across[self.definition.across.index(column)]
            runs = self.by_words.get(words, [])
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
            PAPER if column == PAPER else COLUMNS[column].head.format(**definition.given())
            for column in definition.columns
        ]
        rows = [self._row(row) for row in definition.rows]
        if any(row[-1] for row in rows):  # remarks on rows have their own column
            heads.append("")
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
        """Return the sentence on the runs' command, and the commits of the code."""
        rows = [run for row in self.definition.rows for run in self.runs_of(row)]
        commits = sorted({run.commit for run in rows} - {""})
        at = f", at {', '.join(f'`{commit}`' for commit in commits)}" if commits else ""
        kinds = sorted({run.cpu for run in rows}, reverse=True)
        at += "" if kinds in ([], [""]) else f" on {' and '.join(k or OTHER_CPU for k in kinds)}"
        smooth = self.definition.smooth
        means = self._seeds()
        means += f"; accuracies are means of {smooth} evaluations" if smooth > 1 else ""
        blank = any(
            words not in self.by_words for row in self.definition.rows for words in row.across
        )
        means += "; blank: not run" if blank else ""
        words = [command(self.definition.experiment), self.definition.beside, "dataset.root=FOLDER"]
        return f"`{' '.join(filter(None, words))}`{at}{means}"

    def _seeds(self) -> str:
        """Return the text on the number of seeds of the cells."""
        every = set().union(*(row.all_words for row in self.definition.rows))
        counts = sorted({len(self.by_words[words]) for words in every & set(self.by_words)})
        if not counts:
            return ""
        if counts[0] == 1 < counts[-1]:
            return f"; {counts[-1]} seeds, one where there is no ±"
        text = " or ".join(map(str, counts))
        return f"; {text} seeds" if counts != [1] else "; one seed"


Filled = FilledTable | FilledBenchmarkTable


def fill(
    page: PageDefinition, kept: Mapping[str, Sequence[KeptRun]], measured: Mapping[str, Measured]
) -> list[Filled]:
    """Return the page's tables, with the runs of experiments and the values of benchmarks."""
    return [
        FilledBenchmarkTable(table, measured[table.benchmark])
        if isinstance(table, BenchmarkTable)
        else FilledTable(table, kept[table.experiment])
        for table in page.tables
    ]


def markdown(page: PageDefinition, tables: Sequence[Filled], shown: Mapping[str, set[str]]) -> str:
    """Return the page. Raises `ResultsError` for a text with an unknown name.

    `shown`: by experiment, the overrides of the runs in the tables of all pages.
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
            lines += [BARS if table.definition.picture == POINTS else BANDS, ""]
        if table.definition.note:
            lines += [*wrap(filled(page, table.definition.note, tables)), ""]
    for text in (*page.notes, MEANS):
        lines += [*wrap(filled(page, text, tables)), ""]
    of_runs = [table for table in tables if isinstance(table, FilledTable)]
    runs = {table.definition.experiment: table.runs for table in of_runs}
    for name, of in runs.items():
        lines += _left_over(name, of, shown.get(name, set()))
    return "\n".join(lines).rstrip() + "\n"


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


def _left_over(name: str, runs: Sequence[KeptRun], shown: set[str]) -> list[str]:
    """Return Markdown lines on an experiment's runs that are in no table; empty without any."""
    words = sorted({run.words for run in runs} - shown)
    if not words:
        return []
    lines = [f"Kept of `{name}`, and in no table:", ""]
    for each in words:
        lines += wrap(f"`{each or 'no words'}`", "* ", "  ")
    return [*lines, ""]
