"""Makes a page of results in Markdown from its definition, its tables and `page.md.j2`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from docs.text import wrap
from edgewire.report.reader import ResultsError
from edgewire.task.metric import ACCURACY
from papers.make.columns import FAILED_REPLIES, FAILED_REPLY
from papers.make.definitions import PICTURES, PageDefinition, TableDefinition
from papers.make.tables import Filled, FilledTable

HEAD = "<!-- Written by `python -m papers.make.results` from papers/pages/{name}.yaml. -->"
TEMPLATE = "page.md.j2"
REFERENCE = re.compile(r"\{([^{}]*)\}")


def markdown(page: PageDefinition, tables: Sequence[Filled], shown: Mapping[str, set[str]]) -> str:
    """Return the page in Markdown. Raises `ResultsError` for a text with an unknown name.

    `shown`: for each experiment, the overrides of the runs that the tables of all pages show.
    """
    of_runs = [table for table in tables if isinstance(table, FilledTable)]
    text = _template().render(
        head=HEAD.format(name=page.name),
        page=page,
        tables=tables,
        filled=partial(filled, page, tables),
        pictures=PICTURES,
        metric=next((table.metric for table in of_runs if table.has_run()), ACCURACY),
        picture_name=picture_name,
        columns={column for table in of_runs for column in table.definition.columns},
        cells="\n".join(table.markdown for table in of_runs),
        failed_reply=FAILED_REPLY,
        failed_replies=FAILED_REPLIES,
        left_over=_left_over(of_runs, shown),
    )
    return text.rstrip() + "\n"


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # pages are Markdown
    )
    environment.filters["wrap"] = lambda *given: "\n".join(wrap(*given))
    return environment.get_template(TEMPLATE)


def _left_over(
    tables: Sequence[FilledTable], shown: Mapping[str, set[str]]
) -> dict[str, list[str]]:
    """Return for each experiment the overrides of its stored runs that no table shows, if any."""
    every = {table.definition.experiment: table.by_settings.keys() for table in tables}
    found = {name: sorted(settings - shown.get(name, set())) for name, settings in every.items()}
    return {name: settings for name, settings in found.items() if settings}


def filled(page: PageDefinition, tables: Sequence[Filled], text: str) -> str:
    """Return a text with numbers in place of `{row.column}` (one table) or `{table.row.column}`.

    Raises `ResultsError` for an unknown name, and for a single brace.
    """
    if {"{", "}"} & set(REFERENCE.sub("", text)):
        raise ResultsError(f"papers/pages/{page.name}.yaml: a brace without the other: {text!r}")

    def value(found: re.Match[str]) -> str:
        try:
            return _value(found[1].split("."), tables)
        except ResultsError as error:
            raise ResultsError(f"papers/pages/{page.name}.yaml: {found[0]}: {error}") from error

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
