"""Reads rows of a table for known columns: raw inputs of a model, and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from logging import getLogger
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task.errors import TaskError, listed
from edgewire.task.tables.arrow import compute, pyarrow, types
from edgewire.task.tables.columns import Column, Columns
from edgewire.task.tables.files import DATES, NUMBER, THOUSANDS, Rows, is_text, read, tidy
from edgewire.task.tensors import Tensors

DAY = 86_400_000_000  # microseconds
log = getLogger("edgewire")
Floats = NDArray[np.float64]


def rows_of(source: Any, columns: Columns, texts: Iterable[str] = ()) -> Rows:
    """Return the rows of a file, of several, or of a DataFrame, for known columns.

    `texts`: further columns that are read as text.
    """
    known = (*columns.features, *columns.target)
    return read(source, columns.reading, {*texts, *(each.name for each in known if _as_text(each))})


def _as_text(column: Column) -> bool:
    """Say whether its cells must be read as text: `01067` and `1067` are two categories."""
    if column.kind != "category" or {*column.values} <= {"False", "True"}:
        return column.kind != "category" and bool(column.values)
    for number in (pyarrow.int64(), pyarrow.float64()):
        try:
            cells = pyarrow.array([*column.values]).cast(number)
        except pyarrow.ArrowException:
            continue
        if _texts(cells).to_pylist() == [*column.values]:
            return False
    return True


def ids_of(rows: Rows, columns: Columns) -> tuple[str, list[Any]] | None:
    """Return the name and the cells of the first column that tells all rows apart, and is no input.

    Else it is the first one without gaps of those that the training left out. None: there is none.
    """
    left, repeated = {name for name, why in columns.left if why != "constant"}, None
    used = {each.name for each in (*columns.features, *columns.target)}
    for name, cells in zip(rows.names, rows.table.columns, strict=True):
        found = cells.to_pylist() if name not in used and not is_window(cells.type) else []
        if found and None not in found:
            if len({*found}) == len(found):
                return name, found
            repeated = repeated or ((name, found) if name in left else None)
    return repeated


def inputs_of(rows: Rows, columns: Columns) -> Tensors:
    """Return the raw inputs of all rows, as `TableTransform` takes them.

    They are float64 (N, columns), or for windows float32 (N, channels, length), or both. Raises
    `TaskError` in one line for absent columns, and for cells of another kind.
    """
    places = located(rows, [each.name for each in columns.features])
    matrix, channels, wrong, unlike = list[Floats](), [], [], list[str]()
    for column in columns.features:
        found = rows.table.column(places[column.name])
        try:
            if column.kind == "window":
                channels.append(windows(rows, found, column.length))
                continue
            matrix.append(values_of(rows, found, column))
            unlike += _unlike(column, found, matrix[-1])
        except OddCells as odd:
            wrong.append(f"{column.name} has {odd}, and a {column.kind} is taken")
    if wrong:
        raise TaskError(f"{rows.place}: {listed(wrong, 5, '; ')}: fix or empty these cells")
    if unlike:
        log.warning("%s: %s", rows.place, listed(unlike))
    tensors = [torch.from_numpy(np.stack(each, 1)) for each in (matrix, channels) if each]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _unlike(column: Column, cells: Any, values: Floats) -> Iterator[str]:
    """Yield in words how values, (N,), differ from the training's, few of which are 2 std away."""
    name, gaps, new = column.name, np.isnan(values), (values == -1) & (column.kind == "category")
    far = np.abs(values[~gaps] - column.mean) > (4 if len(gaps) < 5 else 2) * column.std
    if new.any():
        text = tidy(cells[int(new.argmax())])[:20]
        yield f"{100 * new.mean():.3g} % of {name} is unknown, such as {text}"
    if column.kind == "number" and 2 * far.sum() > len(far):
        yield f"{100 * far.mean():.3g} % of {name} is far from the training's {column.mean:.3g}"
    if len(gaps) > 1 and gaps.mean() > 0.9 > column.missing:
        yield f"{100 * gaps.mean():.3g} % of {name} has no value"


def targets_of(rows: Rows, columns: Columns) -> Tensor | None:
    """Return the targets of all rows; None if the table has no column of the target.

    Classes are int64 (N,), a number float32 (N,), and several float32 (N, k). Raises `TaskError` in
    one line for an unknown class, and for a cell without a value.
    """
    wanted = [each.name for each in columns.target]
    if not {*wanted} & {*rows.names}:
        return None
    places, values = located(rows, wanted), []
    for column in columns.target:
        found = rows.table.column(places[column.name])
        try:
            if column.kind == "integer":
                return torch.from_numpy(found.cast("int64").to_numpy().copy())
            value = values_of(rows, found, column)
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


def random_rows(columns: Columns, count: int) -> Tensors:
    """Return raw inputs of so many made-up rows, like those of the training; always the same."""
    random = torch.Generator().manual_seed(0)
    cells, channels = list[Tensor](), list[Tensor]()
    for each in columns.features:
        size = (count, each.length) if each.kind == "window" else (count,)
        values = each.mean + each.std * torch.randn(size, generator=random).double()
        if each.kind == "category":
            values = torch.randint(len(each.values) + 1, size, generator=random).double()
        values[:1] = torch.nan if each.missing else values[:1]
        (channels if each.kind == "window" else cells).append(values)
    parts = [torch.stack(cells, 1)] if cells else []
    parts += [torch.stack(channels, 1).float()] if channels else []
    return parts[0] if len(parts) == 1 else tuple(parts)


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
        near = [each for each in names if each.lower().startswith(absent[0].lower())]
        near = get_close_matches(absent[0], names, n=1) or near
        hint = f" (did you mean {near[0]}?)" if near else ""
        has = f"give dataset.{key}=COLUMN of" if key else "it has"
        one = "; dataset.delimiter= or task=table separates columns" if len(names) == 1 else ""
        raise TaskError(f"{place} has no column {listed(absent)}{hint}: {has} {listed(names)}{one}")


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
    if types.is_binary(cells.type) or types.is_large_binary(cells.type):
        return OddCells("text that is not UTF-8, as which the file must be saved")
    return OddCells(f'"{tidy(cells[0].as_py())[:20]}" in row 1 ({str(cells.type)[:40]})')


def is_window(kind: Any) -> bool:
    """Return whether an Arrow type is a list."""
    return any(of(kind) for of in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def is_day(kind: Any) -> bool:
    """Return whether an Arrow type is a date, or a date with a time."""
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def encoded(rows: Rows, cells: Any) -> tuple[NDArray[np.int64], Any]:
    """Return each cell's place among the texts, int64 (N,), -1 without a value, and the texts.

    `cells`: a column of single values. Texts are trimmed, differ from each other, and are none of
    those that mean no value; they are an Arrow array. True and false are `True` and `False`; a
    broken number without a fraction is a whole one. Raises `OddCells` for cells without text.
    """
    try:
        if types.is_boolean(cells.type):
            cells = compute.if_else(cells, "True", "False")
        elif not types.is_dictionary(cells.type):
            cells = _texts(cells)
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


def _texts(cells: Any) -> Any:
    """Return single values as text, each by itself: 1e10 is `10000000000`, as the whole number."""
    texts = cells.cast(pyarrow.string())
    if not types.is_floating(cells.type):
        return texts
    numbers = cells.cast(pyarrow.float64())
    whole = compute.equal(compute.floor(numbers), numbers)
    whole = compute.and_(whole, compute.less(compute.abs(numbers), 2.0**63))
    digits = compute.if_else(whole, numbers, 0.0).cast(pyarrow.int64(), safe=False)
    return compute.if_else(whole, digits.cast(pyarrow.string()), texts)


def numeric(rows: Rows, texts: Any) -> Any:
    """Return texts as an Arrow array of float64, without a value where they are no numbers."""
    texts = compute.replace_substring_regex(texts, r"^([+-]?[\d.,]+)\s*%$", r"\1")  # percents
    decimal = rows.reading.decimal or "."
    short = compute.replace_substring(texts, "," if decimal == "." else ".", "")
    texts = compute.if_else(compute.match_substring_regex(texts, THOUSANDS[decimal]), short, texts)
    if decimal == ",":
        texts = compute.replace_substring(texts, ",", ".")
    good = compute.match_substring_regex(texts, NUMBER)
    return compute.if_else(good, texts, None).cast(pyarrow.float64())


def dated(texts: Any, forms: Iterable[str]) -> Any:
    """Return texts as an Arrow array of times, by the first form that each has."""
    parsed = (compute.strptime(texts, format=f, unit="us", error_is_null=True) for f in forms)
    return compute.coalesce(*parsed)


def values_of(rows: Rows, cells: Any, column: Column) -> Floats:
    """Return the raw values of a column that is no window, float64 (N,), NaN without a value.

    Dates, times of day and durations are days; true is 1; a text of a category is its place in
    `column.values`, behind them if it counts as another one, else -1. Raises `OddCells` for cells
    of another kind, and for infinity.
    """
    if column.kind == "category" or is_text(cells.type):
        places, texts = encoded(rows, cells)
        if column.kind == "category":
            found = compute.index_in(texts, pyarrow.array([*column.values], pyarrow.string()))
            found = found.fill_null(len(column.values) if column.other else -1)
        elif column.kind in ("date", "time"):
            found = dated(texts, column.values or DATES)
        else:
            found = numeric(rows, texts)
        values = np.append(_floats(found), np.nan)[places]
        _expect_none(rows, (np.isnan(values) & (places >= 0)) | np.isinf(values), cells)
        return values
    if (column.kind in ("date", "time")) != is_day(cells.type) and not types.is_null(cells.type):
        raise _untaken(cells)
    try:
        values = _floats(cells)
    except pyarrow.ArrowException as error:
        raise _untaken(cells) from error
    _expect_none(rows, np.isinf(values), cells)
    return values


def _floats(cells: Any) -> Floats:
    """Return plain cells as float64 (N,): of dates, times and durations the days."""
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
