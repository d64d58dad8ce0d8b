"""Reads rows of a table for known columns: raw inputs of a model, and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewire.task.errors import TaskError
from edgewire.task.tables import cells
from edgewire.task.tables.cells import OddCells
from edgewire.task.tables.columns import Column, Columns
from edgewire.task.tables.files import Rows, read, tidy
from edgewire.task.tensors import Tensors

MOST_NAMED = 20  # columns that a message names


def rows_of(source: Any, columns: Columns) -> Rows:
    """Return the rows of a file, of several, or of a DataFrame, for known columns."""
    known = (*columns.features, *columns.target)
    return read(source, columns.reading, {each.name for each in known if each.as_text})


def inputs_of(source: Any, columns: Columns) -> Tensors:
    """Return the raw inputs of all rows, as `TableTransform` takes them.

    They are float64 (N, columns), or for windows float32 (N, channels, length), or both. Raises
    `TaskError` in one line for absent columns, and for cells of another kind.

    `source`: as for `files.read`, or rows that were read already.
    """
    rows = source if isinstance(source, Rows) else rows_of(source, columns)
    places = located(rows, [each.name for each in columns.features])
    scalars = [each for each in columns.features if each.kind != "window"]
    matrix = np.empty((rows.table.num_rows, len(scalars)), np.float64)
    channels, number, wrong = [], 0, []
    for column in columns.features:
        found = rows.table.column(places[column.name])
        try:
            if column.kind == "window":
                channels.append(cells.windows(rows, found, column.length))
            else:
                matrix[:, number] = values_of(rows, found, column)
                number += 1
        except OddCells as odd:
            wrong.append(f"{column.name} has {odd}, and a {column.kind} is taken")
            number += column.kind != "window"
    if wrong:
        more = f"; and {len(wrong) - 5} more columns" if len(wrong) > 5 else ""
        raise TaskError(f"{rows.place}: {'; '.join(wrong[:5])}{more}")
    tensors = [torch.from_numpy(matrix)] if scalars else []
    if channels:
        tensors.append(torch.from_numpy(np.stack(channels, 1)))
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def values_of(rows: Rows, found: Any, column: Column) -> cells.Floats:
    """Return the raw values of a column that is no window, float64 (N,)."""
    if column.kind == "category":
        return cells.places_of(rows, found, column.values, column.other)
    if column.kind in ("number", "integer"):
        return cells.numbers(rows, found)
    return cells.days(rows, found, next(iter(column.values), None))


def targets_of(source: Any, columns: Columns) -> Tensor | None:
    """Return the targets of all rows; None if the table has no column of the target.

    Classes are int64 (N,), a number float32 (N,), and several float32 (N, k). Raises `TaskError` in
    one line for an unknown class, and for a cell without a value.
    """
    rows = source if isinstance(source, Rows) else rows_of(source, columns)
    wanted = [each.name for each in columns.target]
    if not wanted or not {*wanted} & {*rows.names}:
        return None
    places = located(rows, wanted)
    values = []
    for column in columns.target:
        found = rows.table.column(places[column.name])
        try:
            value = values_of(rows, found, column)
        except OddCells as odd:
            raise TaskError(f"{rows.place}: the target {column.name} has {odd}") from odd
        for mask, said in ((np.isnan(value), "no value"), (value < 0, "an unknown class")):
            if mask.any() and (column.values or said == "no value"):
                row = int(mask.argmax())
                what = f" ({str(found[row].as_py())[:40]!r})" if column.values else ""
                raise TaskError(
                    f"{rows.place}: the target {column.name} has {said}{what} in {rows.row(row)}"
                    + (f": the classes are {tidy(', '.join(column.values[:12]))}" if what else "")
                )
        values.append(value)
    if columns.target[0].kind == "integer":
        return _integers(rows, rows.table.column(places[wanted[0]]))
    if columns.classes:
        return torch.from_numpy(values[0].astype(np.int64))
    numbers = torch.from_numpy(np.stack(values, 1).astype(np.float32))
    return numbers[:, 0].contiguous() if len(values) == 1 else numbers


def _integers(rows: Rows, found: Any) -> Tensor:
    """Return whole numbers, int64 (N,); raises `TaskError` for larger ones."""
    import pyarrow

    try:
        return torch.from_numpy(found.cast(pyarrow.int64()).to_numpy().copy())
    except pyarrow.ArrowException as error:
        raise TaskError(
            f"{rows.place}: the target is not of whole numbers up to 2^63 - 1, which are taken"
        ) from error


def located(rows: Rows, wanted: Sequence[str], key: str = "") -> dict[str, int]:
    """Return the places of columns by name; raises `TaskError` for absent and for double ones.

    `key`: the option of `dataset` that names them, for the message.
    """
    places = {name: place for place, name in enumerate(rows.names)}
    if absent := [name for name in wanted if name not in places]:
        raise TaskError(f"{rows.place} has {lacking(rows, absent, key)}")
    counts = Counter(rows.names)
    if double := next((name for name in wanted if counts[name] > 1), None):
        raise TaskError(f"{rows.place} has {counts[double]} columns {double}: rename all but one")
    return places


def lacking(rows: Rows, absent: Sequence[str], key: str = "") -> str:
    """Return the names of absent columns, and of those that there are, for a message."""
    near = get_close_matches(absent[0], rows.names, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    more = ", ..." if len(rows.names) > MOST_NAMED else ""
    has = f"dataset.{key}= names columns of" if key else "it has"
    one = "; dataset.delimiter= separates columns" if key and len(rows.names) == 1 else ""
    where = f" in {rows.partial[absent[0]]}" if absent[0] in rows.partial else ""
    there = f"{has} {', '.join(rows.names[:MOST_NAMED])}{more}{one}"
    return f"no column {', '.join(absent[:MOST_NAMED])}{where}{hint}: {there}"
