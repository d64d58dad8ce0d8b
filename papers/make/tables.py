"""The tables of a page, filled with the stored runs or with the values of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean
from typing import Any

from omegaconf import DictConfig, OmegaConf

from edgewire.report.format import NOTHING, markdown_table
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Run, by_seed, in_order, main_metric
from edgewire.task.metric import Metric
from papers.make.columns import (
    COLUMNS,
    NOT_RUN,
    ONE_SEED,
    PAPER_HEAD,
    REMARKS,
    PageRow,
    Rendered,
    remark,
)
from papers.make.definitions import (
    MAIN,
    PAPER,
    BenchmarkTable,
    PageDefinition,
    RowDefinition,
    TableDefinition,
)
from papers.make.measured import Measured
from papers.make.run_archive import EXPERIMENTS, ROOT, command, parse_overrides

COLUMN, ROW = "column", "row"  # placeholders in a path for the keys of a column and of a row


@dataclass(frozen=True)
class Origin:
    """Where the values of a table are from, for the text below the table.

    `command`: the command that measured the values; `commits`: those of its code. For tables of
    runs also: `cpus`, the instruction sets that torch used; `all_know_cpu`, whether all runs
    recorded theirs; `seeds`, how many seeds the cells have, sorted, each number once; `has_blank`,
    whether some cells have no run.
    """

    command: str
    commits: Sequence[str]
    cpus: Sequence[str] = ()
    all_know_cpu: bool = True
    seeds: Sequence[int] = ()
    has_blank: bool = False


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

    @cached_property
    def metric(self) -> Metric:
        """The main metric of the table's runs."""
        return main_metric(run for row in self.definition.rows for run in self.runs_of(row))

    @cached_property
    def texts(self) -> dict[str, str]:
        """The texts that the heads of columns need."""
        given, metric = self.definition.given(), self.metric
        bounds = {"reached": metric.bound(given["reach"]), "bound": given["reach"] + metric.unit}
        return {**given, **metric.heads, **bounds}

    @cached_property
    def settings(self) -> dict[str, list[str]]:
        """A dict from the ids of rows to the settings of their runs."""
        return {row.id: self.definition.settings(row) for row in self.definition.rows}

    def runs_of(self, row: RowDefinition) -> list[Run]:
        """Return the row's runs, in the order of their seeds; none if it has not run."""
        settings = sorted(self.settings[row.id])
        return [run for each in settings for run in self.by_settings.get(each, [])]

    def has_run(self) -> bool:
        """Return whether any row has runs."""
        return any(self.runs_of(row) for row in self.definition.rows)

    @cached_property
    def markdown(self) -> str:
        """The table in Markdown. Remarks on rows have their own column."""
        definition = self.definition
        heads = definition.heads_across() or [
            (PAPER_HEAD if column == PAPER else COLUMNS[column].head).format(**self.texts)
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
        if column in (heads := self.definition.heads_across()):
            settings = self.settings[row.id][heads.index(column)]
            runs = self.by_settings.get(settings, [])
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
        beside = in_order(parse_overrides(definition.beside))
        root = "" if _generates_data(definition.experiment) else "dataset.root=FOLDER"
        words = [command(definition.experiment), beside, root]
        runs = [run for row in definition.rows for run in self.runs_of(row)]
        settings = {each for settings in self.settings.values() for each in settings}
        ran = settings & self.by_settings.keys()
        return Origin(
            command=" ".join(filter(None, words)),
            commits=sorted({run.result["commit"] for run in runs} - {""}),
            cpus=sorted({run.result["cpu"] for run in runs} - {""}, reverse=True),
            all_know_cpu=all(run.result["cpu"] for run in runs),
            seeds=sorted({len(self.by_settings[each]) for each in ran}),
            has_blank=bool(definition.heads_across()) and ran != settings,
        )

    def _cells(self, row: RowDefinition) -> list[str]:
        if self.definition.heads_across():
            return self._across(row)
        runs = self.runs_of(row)

        def cell(column: str) -> str:
            if column == PAPER:
                return row.paper or NOTHING
            return self._show(runs, column).cell if runs else ""

        return [cell(column) for column in self.definition.columns]

    def _across(self, row: RowDefinition) -> list[str]:
        """Return a row's cells in a table whose columns show runs with different overrides.

        In a search (of a learning rate) the cell whose worst seed is best is bold, among the cells
        with the most seeds. A mean would also select a rate at the edge of stability.
        """
        (column,) = self.definition.columns
        found = [self.by_settings.get(settings, []) for settings in self.settings[row.id]]
        cells = [
            self._show(runs, column).cell.removesuffix(ONE_SEED) if runs else "" for runs in found
        ]
        if not self.definition.search:
            return cells
        key = self.metric.name if column == MAIN else column
        values = [list(by_seed(runs, key).values()) for runs in found]
        most = max(map(len, values))
        worst = [self.metric.worst(each) if len(each) == most else None for each in values]
        best = self.metric.best([value for value in worst if value is not None])
        return [
            f"**{c}**" if c and w is not None and w == best else c
            for c, w in zip(cells, worst, strict=True)
        ]

    def _show(self, runs: Sequence[Run], column: str) -> Rendered:
        definition = self.definition
        other = definition.row(definition.against)
        against = self.runs_of(other) if other else []
        row = PageRow({}, runs, definition.reach, against, definition.after)
        return COLUMNS[column].show(row)


@dataclass(frozen=True)
class FilledBenchmarkTable:
    """A table's definition and the values that the benchmark measured."""

    definition: BenchmarkTable
    measured: Measured

    def has_run(self) -> bool:
        """Return whether the benchmark has run."""
        return bool(self.measured.command)

    @cached_property
    def markdown(self) -> str:
        """The table in Markdown."""
        rows = [
            [row.label, *(self._cell(row.key, key) for key in self.definition.columns.values())]
            for row in self.definition.rows
        ]
        return markdown_table(["", *self.definition.columns], rows)

    def origin(self) -> Origin:
        """Return where the values are from, for the text below the table."""
        commits = [self.measured.commit] if self.measured.commit else []
        return Origin(self.measured.command, commits)

    def sentence(self, name: str, column: str) -> str:
        """Return a cell's text for a sentence. Raises `ResultsError` for an unknown name."""
        keys = {row.id: row.key for row in self.definition.rows}
        if name not in keys:
            raise ResultsError(f"no row {name}")
        if column not in self.definition.columns:
            raise ResultsError(f"no column {column}")
        return self._cell(keys[name], self.definition.columns[column])

    def _cell(self, row: str, column: str) -> str:
        keys = {COLUMN: column, ROW: row}
        return self.measured.value([keys.get(key, key) for key in self.definition.path])


Filled = FilledTable | FilledBenchmarkTable


def fill(
    page: PageDefinition,
    kept: Mapping[str, Sequence[Run]],
    measured: Mapping[str, Measured],
) -> list[Filled]:
    """Return the page's tables, filled with the runs of experiments or the values of benchmarks."""
    return [
        FilledBenchmarkTable(table, measured[table.benchmark])
        if isinstance(table, BenchmarkTable)
        else FilledTable(table, kept[table.experiment])
        for table in page.tables
    ]


@cache
def _generates_data(experiment: str) -> bool:
    """Return whether an experiment, or a case of it, has a data set that takes no folder."""
    file = ROOT / EXPERIMENTS / f"{experiment}.yaml"
    made: Any = OmegaConf.load(file) if file.is_file() else OmegaConf.create()
    defaults = made.get("defaults", [])
    chosen = {key for each in defaults if isinstance(each, DictConfig) for key in each}
    cases = OmegaConf.select(made, "hydra.sweeper.cases") or []
    own = any("task=" in case for case in cases)
    return own or ("override /task" in chosen and "override /dataset" not in chosen)


def smoothed(run: Run, count: int) -> Run:
    """Return a run with the mean of the last `count` evaluations for each of its main metric.

    In asynchronous training at a constant learning rate a single evaluation is inexact: the next
    evaluation differs by up to one percentage point. The history has only rows with an accuracy,
    from that of evaluation number `count` on. A run with fewer evaluations has one row, its last.

    Raises `ResultsError` for a stored run whose evaluations are not all stored.
    """
    if count == 1:
        return run
    rows, name = run.evaluations(), run.metric.name
    first = min(count, len(rows))
    means = [
        rows[end - 1] | {name: fmean(row[name] for row in rows[end - first : end])}
        for end in range(max(first, 1), len(rows) + 1)
    ]
    result = {
        name: means[-1][name] if means else None,
        f"best_{name}": run.metric.best([row[name] for row in means]),
        "evaluations": len(means),
    }
    return replace(run, result=run.result | result, history=lambda: means)
