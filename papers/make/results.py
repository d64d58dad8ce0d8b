"""Writes the pages of results: papers/results/NAME.md for every definition papers/pages/NAME.yaml.

`python -m papers.make.results` writes the pages and their pictures from the stored runs
(papers/runs), the list of pages in docs/results.md, and README's picture docs/first.png. `--check`
changes nothing: it prints which files are out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.text import wrap
from edgewire.report.reader import ResultsError, mistakes_are_lines
from papers.make.definitions import (
    POINTS,
    BenchmarkTable,
    PageDefinition,
    TableDefinition,
    read_definitions,
)
from papers.make.first_picture import first_picture
from papers.make.measured import measured_file, read_measured
from papers.make.page import HEAD, filled, markdown, picture_name
from papers.make.picture import Picture
from papers.make.run_archive import ROOT, archive_file, read_archive
from papers.make.scatter_plot import scatter
from papers.make.tables import Filled, FilledBenchmarkTable, FilledTable, fill
from papers.make.traces import traces

FOLDER = Path("papers/results")
INDEX = Path("docs/results.md")
FIRST = Path("docs/first.png")
BEGIN, END = "<!-- pages: written by `python -m papers.make.results` -->", "<!-- end of pages -->"
COMMAND = "python -m papers.make.results"


@dataclass(frozen=True)
class Output:
    """A file's expected content: a text or a picture; None for a file that should not exist."""

    file: Path
    content: str | Picture | None

    def is_there(self) -> bool:
        """Return whether the file has the expected content."""
        if isinstance(self.content, Picture):
            return self.content.is_in(self.file)
        if self.content is None:  # the file may be a picture, which is no text
            return not self.file.exists()
        return self.file.is_file() and self.file.read_text() == self.content

    def write(self) -> None:
        """Write the file, or remove it."""
        if isinstance(self.content, Picture):
            self.content.save(self.file)
        elif self.content is None:
            self.file.unlink()
        else:
            self.file.write_text(self.content)


def outputs(root: Path) -> list[Output]:
    """Return the files to write for the definitions and stored runs in `root`; the index is last.

    Raises `ResultsError` with a one-line message for the first mistake.
    """
    pages = read_definitions(root)
    tables_of = [table for page in pages for table in page.tables]
    every = [table for table in tables_of if isinstance(table, TableDefinition)]
    benchmarks = {table.benchmark for table in tables_of if isinstance(table, BenchmarkTable)}
    measured = {name: read_measured(measured_file(root, name)) for name in benchmarks}
    kept = {name: read_archive(archive_file(root, name)) for name in {t.experiment for t in every}}
    shown: dict[str, set[str]] = {name: set() for name in kept}
    for table in every:
        shown[table.experiment] |= table.all_settings()
    found: list[Output] = []
    items: list[str] = []
    for page in pages:
        tables = fill(page, kept, measured)
        text = markdown(page, tables, shown)  # also without runs, to find mistakes
        has_run = any(table.has_run() for table in tables)
        file = root / FOLDER / f"{page.name}.md"
        _expect_ours(file, page)
        found.append(Output(file, text if has_run else None))
        found += _pictures(file.parent, page, tables)
        found += [
            Output(root / FIRST, first_picture(table))
            for table in tables
            if isinstance(table, FilledBenchmarkTable) and table.definition.first
        ]
        items += wrap(_item(page, tables) if has_run else f"{page.title}: not run yet", "* ", "  ")
    pages_there = set((root / FOLDER).glob("*.md"))
    if foreign := sorted(pages_there - {output.file for output in found}):
        raise ResultsError(f"{foreign[0]} has no definition in papers/pages: remove it, or move it")
    return [*found, Output(root / INDEX, _index(root / INDEX, items))]


def _expect_ours(file: Path, page: PageDefinition) -> None:
    """Raise `ResultsError` for a page that a person wrote, which would be overwritten."""
    if file.is_file() and not file.read_text().startswith(HEAD.format(name=page.name)):
        raise ResultsError(f"{file} was written by hand: remove it first, or rename the definition")


def _pictures(folder: Path, page: PageDefinition, tables: Sequence[Filled]) -> list[Output]:
    return [
        Output(folder / picture_name(page, table.definition), _picture(table))
        for table in tables
        if isinstance(table, FilledTable) and table.definition.picture
    ]


def _picture(table: FilledTable) -> Picture | None:
    """Return a table's picture; None without runs."""
    drawn = scatter(table) if table.definition.picture == POINTS else traces(table)
    return drawn if drawn.rows else None


def _item(page: PageDefinition, tables: Sequence[Filled]) -> str:
    """Return the list item of a page: its link and its claim."""
    return f"[{page.title}](../{FOLDER}/{page.name}.md): {filled(page, tables, page.claim)}"


def _index(file: Path, items: Sequence[str]) -> str:
    """Return docs/results.md with these items between its two comments that mark the list."""
    text = file.read_text() if file.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"{file} needs the lines {BEGIN} and {END}: between them goes the list")
    return before + "\n".join([begin, "", *items, "", end]) + after


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the pages, or print which are out of date; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    asked = parser.parse_args(arguments)
    stale = [output for output in outputs(root) if not output.is_there()]
    for output in stale:
        if not asked.check:
            output.write()
    for output in stale:
        name = output.file.relative_to(root)
        print(
            f"{name} is out of date; run: {COMMAND}" if asked.check else f"{name}: {_done(output)}"
        )
    return int(asked.check and bool(stale))


def _done(output: Output) -> str:
    return "written" if output.content is not None else "removed, it has no run"


if __name__ == "__main__":
    sys.exit(main())
