"""Reads rows of a table for known columns: raw inputs of a model, and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewire.task.errors import TaskError
from edgewire.task.tables import cells
from edgewire.task.tables.cells import OddCells
from edgewire.task.tables.columns import Columns
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
    matrix, channels, wrong = list[cells.Floats](), [], []
    for column in columns.features:
        found = rows.table.column(places[column.name])
        try:
            if column.kind == "window":
                channels.append(cells.windows(rows, found, column.length))
            else:
                matrix.append(cells.values_of(rows, found, column))
        except OddCells as odd:
            wrong.append(f"{column.name} has {odd}, and a {column.kind} is taken")
    if wrong:
        more = f"; and {len(wrong) - 5} more columns" if len(wrong) > 5 else ""
        raise TaskError(f"{rows.place}: {'; '.join(wrong[:5])}{more}")
    tensors = [torch.from_numpy(np.stack(each, 1)) for each in (matrix, channels) if each]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def targets_of(source: Any, columns: Columns) -> Tensor | None:
    """Return the targets of all rows; None if the table has no column of the target.

    Classes are int64 (N,), a number float32 (N,), and several float32 (N, k). Raises `TaskError` in
    one line for an unknown class, and for a cell without a value.
    """
    rows = source if isinstance(source, Rows) else rows_of(source, columns)
    wanted = [each.name for each in columns.target]
    if not {*wanted} & {*rows.names}:
        return None
    places, values = located(rows, wanted), []
    for column in columns.target:
        found = rows.table.column(places[column.name])
        try:
            if column.kind == "integer":
                return torch.from_numpy(found.cast("int64").to_numpy().copy())
            value = cells.values_of(rows, found, column)
        except ValueError as odd:  # of ours, or pyarrow's
            limit = "; whole numbers up to 2^63 - 1 are taken" * (column.kind == "integer")
            raise TaskError(f"{rows.place}: the target {column.name} has {odd}{limit}") from odd
        classes = f": the classes are {tidy(', '.join(column.values[:12]))}" * bool(column.values)
        for mask, said in ((np.isnan(value), "no value"), (value < 0, "an unknown class")):
            if mask.any() and (column.values or said == "no value"):
                row = int(mask.argmax())
                text = str(found[row].as_py())[:40]
                raise TaskError(
                    f"{rows.place}: the target {column.name} has {said} ({text!r}) in "
                    f"{rows.row(row)}{classes}"
                )
        values.append(value)
    if columns.classes:
        return torch.from_numpy(values[0].astype(np.int64))
    numbers = torch.from_numpy(np.stack(values, 1).astype(np.float32))
    return numbers[:, 0].contiguous() if len(values) == 1 else numbers


def located(rows: Rows, wanted: Sequence[str], key: str = "") -> dict[str, int]:
    """Return the places of columns by name; raises `TaskError` for absent and for double ones.

    `key`: the option of `dataset` that names them, for the message.
    """
    expect_there(rows.place, rows.names, wanted, key)
    counts = Counter(rows.names)
    if double := next((name for name in wanted if counts[name] > 1), None):
        raise TaskError(f"{rows.place} has {counts[double]} columns {double}: rename all but one")
    return {name: place for place, name in enumerate(rows.names)}


def expect_there(place: str, names: Sequence[str], wanted: Iterable[str], key: str = "") -> None:
    """Raise `TaskError` if a table at `place` with columns `names` lacks wanted ones."""
    there = {*names}
    if absent := [name for name in wanted if name not in there]:
        near = get_close_matches(absent[0], names, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        has = f"dataset.{key}= names columns of" if key else "it has"
        more = ", ..." if len(names) > MOST_NAMED else ""
        one = "; dataset.delimiter= separates columns" if len(names) == 1 else ""
        raise TaskError(
            f"{place} has no column {', '.join(absent[:MOST_NAMED])}{hint}: {has} "
            f"{', '.join(names[:MOST_NAMED])}{more}{one}"
        )
