"""Turns a table's cells into numbers, days, places of texts, and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewire.task.tables.columns import Column
from edgewire.task.tables.files import NUMBER, Rows, is_text, tidy

DAY = 86_400_000_000  # microseconds
Floats = NDArray[np.float64]


class OddCells(ValueError):
    """Cells of a column are not of its kind. The message names the first one, and how many are."""


def _expect_none(rows: Rows, odd: NDArray[np.bool_], cells: Any) -> None:
    """Raise `OddCells` if there are odd cells."""
    if not odd.any():
        return
    first, count = int(odd.argmax()), int(odd.sum())
    text = tidy(cells[first].as_py())
    said = f'"{text[:20]}{"..." if len(text) > 20 else ""}" in {rows.row(first)}'
    raise OddCells(said + (f" and {count - 1:,} more" if count > 1 else ""))


def _untaken(cells: Any) -> OddCells:
    from pyarrow import types

    if types.is_binary(cells.type) or types.is_large_binary(cells.type):
        return OddCells("text that is not UTF-8, as which the file must be saved")
    return OddCells(f'"{tidy(cells[0].as_py())[:20]}" in row 1 ({str(cells.type)[:40]})')


def is_window(kind: Any) -> bool:
    """Return whether an Arrow type is a list."""
    from pyarrow import types

    return any(of(kind) for of in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def is_day(kind: Any) -> bool:
    """Return whether an Arrow type is a date, or a date with a time."""
    from pyarrow import types

    return bool(types.is_date(kind) or types.is_timestamp(kind))


def encoded(rows: Rows, cells: Any) -> tuple[NDArray[np.int64], Any]:
    """Return each cell's place among the texts, int64 (N,), -1 without a value, and the texts.

    `cells`: a column of single values. Texts are trimmed, differ from each other, and are none of
    those that mean no value; they are an Arrow array. True and false are `True` and `False`; a
    broken number without a fraction is a whole one. Raises `OddCells` for cells without text.
    """
    import pyarrow
    from pyarrow import compute, types

    try:
        if types.is_boolean(cells.type):
            cells = compute.if_else(cells, "True", "False")
        elif not types.is_dictionary(cells.type):
            cells = cells.cast(pyarrow.string())
    except pyarrow.ArrowException as error:
        raise _untaken(cells) from error
    one = pyarrow.chunked_array(cells).dictionary_encode().unify_dictionaries().combine_chunks()
    one = one.chunk(0) if isinstance(one, pyarrow.ChunkedArray) else one
    texts = compute.utf8_trim_whitespace(one.dictionary)
    missing = list(rows.reading.missing or ())
    gaps = compute.is_in(texts, value_set=pyarrow.array(missing, pyarrow.string()))
    inner = compute.if_else(gaps, None, texts).dictionary_encode()
    outer, of_text = (
        each.indices.fill_null(-1).to_numpy().astype(np.int64) for each in (one, inner)
    )
    return np.append(of_text, -1)[outer], inner.dictionary


def numeric(rows: Rows, texts: Any) -> Any:
    """Return texts as an Arrow array of float64, without a value where they are no numbers."""
    import pyarrow
    from pyarrow import compute

    if rows.reading.decimal == ",":
        texts = compute.replace_substring(texts, ",", ".")
    good = compute.match_substring_regex(texts, NUMBER)
    return compute.if_else(good, texts, None).cast(pyarrow.float64())


def values_of(rows: Rows, cells: Any, column: Column) -> Floats:
    """Return the raw values of a column that is no window, float64 (N,), NaN without a value.

    Dates, times of day and durations are days; true is 1; a text of a category is its place in
    `column.values`, behind them if it counts as another one, else -1. Raises `OddCells` for cells
    of another kind, and for infinity.
    """
    import pyarrow
    from pyarrow import compute, types

    if column.kind == "category" or is_text(cells.type):
        places, texts = encoded(rows, cells)
        if column.kind == "category":
            found = compute.index_in(texts, pyarrow.array([*column.values], pyarrow.string()))
            found = found.fill_null(len(column.values) if column.other else -1)
        elif column.kind in ("date", "time"):
            form = next(iter(column.values), "%Y-%m-%d")
            found = compute.strptime(texts, format=form, unit="us", error_is_null=True)
        else:
            found = numeric(rows, texts)
        values = np.append(_floats(found), np.nan)[places]
        _expect_none(rows, (np.isnan(values) & (places >= 0)) | np.isinf(values), cells)
        return values
    days = column.kind in ("date", "time")
    if days != is_day(cells.type) and not types.is_null(cells.type):
        raise _untaken(cells)
    try:
        values = _floats(cells)
    except pyarrow.ArrowException as error:
        raise _untaken(cells) from error
    _expect_none(rows, np.isinf(values), cells)
    return values


def _floats(cells: Any) -> Floats:
    """Return plain cells as float64 (N,): of dates, times and durations the days."""
    import pyarrow
    from pyarrow import types

    kind, unit = cells.type, 1
    if types.is_temporal(kind):
        zone = getattr(kind, "tz", None)
        exact = pyarrow.time64("us") if types.is_time(kind) else pyarrow.timestamp("us", zone)
        exact = pyarrow.duration("us") if types.is_duration(kind) else exact
        cells, unit = cells.cast(exact, safe=False).cast(pyarrow.int64()), DAY
    elif types.is_boolean(kind):
        cells = cells.cast(pyarrow.uint8())
    found = cells.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64) / unit


def windows(rows: Rows, cells: Any, length: int | None = None) -> NDArray[np.float32]:
    """Return a column of lists, float32 (N, length), with NaN for missing values and lists.

    Raises `OddCells` for lists of several lengths, or of another length than the given one, and for
    cells that are no lists of numbers.
    """
    import pyarrow
    from pyarrow import compute

    if not is_window(cells.type):
        raise _untaken(cells)
    lengths = compute.list_value_length(cells)
    found = compute.unique(lengths.drop_null()).to_pylist()
    if len(found) != 1 or not found[0] or length not in (None, found[0]):
        said = f"{min(found)} to {max(found)}" if found else "no"
        raise OddCells(f"lists of {said} values" + (f", and {length} are taken" if length else ""))
    try:
        flat = compute.list_flatten(cells).cast(pyarrow.float32(), safe=False)
    except pyarrow.ArrowException as error:
        raise _untaken(cells) from error
    values = np.full((len(cells), found[0]), np.nan, np.float32)
    values[lengths.is_valid().to_numpy()] = np.asarray(flat.to_numpy()).reshape(-1, found[0])
    _expect_none(rows, np.asarray(np.isinf(values).any(axis=1)), cells)
    return values
