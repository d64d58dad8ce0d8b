"""Turns a table's cells into numbers, days, places of texts, and windows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewire.task.tables.files import NUMBER, Rows, tidy

DAY = 86_400_000_000  # microseconds
HOUR = 3_600_000_000
Floats = NDArray[np.float64]


class OddCells(ValueError):
    """Cells of a column are not of its kind. The message names the first one, and how many are."""


def _odd(rows: Rows, odd: NDArray[np.bool_], cells: Any) -> OddCells:
    first, count = int(odd.argmax()), int(odd.sum())
    text = tidy(cells[first].as_py())
    said = f'"{text[:20]}{"..." if len(text) > 20 else ""}" in {rows.row(first)}'
    return OddCells(said + (f" and {count - 1:,} more" if count > 1 else ""))


def _untaken(cells: Any) -> OddCells:
    from pyarrow import types

    if types.is_binary(cells.type) or types.is_large_binary(cells.type):
        return OddCells("text that is not UTF-8")
    return OddCells(f'"{tidy(cells[0].as_py())[:20]}" in row 1 ({str(cells.type)[:40]})')


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text, by itself or as a dictionary."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(of(kind) for of in (types.is_string, types.is_large_string, types.is_string_view))


def is_window(kind: Any) -> bool:
    """Return whether an Arrow type is a list."""
    from pyarrow import types

    return any(of(kind) for of in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def encoded(cells: Any, missing: Collection[str]) -> tuple[NDArray[np.int64], Any]:
    """Return each cell's place among the texts, int64 (N,), -1 without a value, and the texts.

    `cells`: a column of single values. Texts are trimmed, differ from each other, and are none of
    `missing`; they are an Arrow array. True and false are `True` and `False`; a broken number
    without a fraction is a whole one. Raises `OddCells` for cells that have no text.
    """
    import pyarrow
    from pyarrow import compute

    kind = cells.type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        if pyarrow.types.is_boolean(kind):
            cells = compute.if_else(cells, "True", "False")
        elif not pyarrow.types.is_dictionary(cells.type) or not pyarrow.types.is_string(kind):
            cells = cells.cast(kind).cast(pyarrow.string())
    except pyarrow.ArrowException as error:
        raise _untaken(cells) from error
    one = pyarrow.chunked_array(cells).dictionary_encode().unify_dictionaries().combine_chunks()
    one = one.chunk(0) if isinstance(one, pyarrow.ChunkedArray) else one
    texts = compute.utf8_trim_whitespace(one.dictionary)
    gaps = compute.is_in(texts, value_set=pyarrow.array([*missing], pyarrow.string()))
    inner = compute.if_else(gaps, None, texts).dictionary_encode()
    places = [each.indices.fill_null(-1).to_numpy().astype(np.int64) for each in (one, inner)]
    outer, of_text = places
    return np.where(outer < 0, -1, np.append(of_text, -1)[outer]), inner.dictionary


def plain_numbers(rows: Rows, texts: Any) -> Any:
    """Return texts with a point as decimal character, an Arrow array."""
    from pyarrow import compute

    comma = rows.reading.decimal == ","
    return compute.replace_substring(texts, ",", ".") if comma else texts


def share(texts: Any, places: NDArray[np.int64], pattern: str = NUMBER) -> float:
    """Return the share of the cells with a value whose text matches; `places`: of `encoded`."""
    from pyarrow import compute

    good = compute.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    used = places[places >= 0]
    return float(np.append(good, False)[used].mean()) if len(used) else 1.0


def numbers(rows: Rows, cells: Any) -> Floats:
    """Return a column of numbers, float64 (N,), NaN without a value.

    True is 1. A time of day, and a duration, are hours. Raises `OddCells` for others.
    """
    import pyarrow
    from pyarrow import compute, types

    kind = cells.type
    odd = None
    if is_text(kind):
        places, texts = encoded(cells, rows.reading.missing or ())
        texts = plain_numbers(rows, texts)
        good = compute.match_substring_regex(texts, NUMBER)
        parsed = compute.if_else(good, texts, None).cast(pyarrow.float64())
        found = np.append(parsed.to_numpy(zero_copy_only=False), np.nan)[places]
        odd = np.isnan(found) & (places >= 0)
    elif types.is_time(kind) or types.is_duration(kind):
        unit = pyarrow.time64("us") if types.is_time(kind) else pyarrow.duration("us")
        found = _floats(cells.cast(unit).cast(pyarrow.int64())) / HOUR
    else:
        try:
            found = _floats(cells.cast(pyarrow.uint8()) if types.is_boolean(kind) else cells)
        except pyarrow.ArrowException as error:
            raise _untaken(cells) from error
    odd = np.isinf(found) if odd is None else odd | np.isinf(found)
    if odd.any():
        raise _odd(rows, odd, cells)
    return found


def _floats(cells: Any) -> Floats:
    import pyarrow

    found = cells.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)


def days(rows: Rows, cells: Any, form: str | None) -> Floats:
    """Return dates and times as days since 1970, float64 (N,), NaN without a value.

    `form`: the format of texts, as strptime takes it; None: ISO 8601. Raises `OddCells` for others.
    """
    import pyarrow
    from pyarrow import compute, types

    if is_text(cells.type):
        places, texts = encoded(cells, rows.reading.missing or ())
        parsed = compute.strptime(texts, form or "%Y-%m-%d", "us", error_is_null=True)
        found = np.append(_floats(parsed.cast(pyarrow.int64())), np.nan)[places] / DAY
        if (odd := np.isnan(found) & (places >= 0)).any():
            raise _odd(rows, odd, cells)
        return found
    if not types.is_date(cells.type) and not types.is_timestamp(cells.type):
        if cells.null_count == len(cells):
            return np.full(len(cells), np.nan)
        raise OddCells(f"cells of {cells.type}")
    zone = getattr(cells.type, "tz", None)
    exact = cells.cast(pyarrow.timestamp("us", zone), safe=False).cast(pyarrow.int64())
    return _floats(exact) / DAY


def places_of(rows: Rows, cells: Any, values: Sequence[str], other: bool) -> Floats:
    """Return the places of a category's texts in `values`, float64 (N,).

    A cell without a value is NaN. Any other text is `len(values)` if there are others, else -1.
    """
    import pyarrow
    from pyarrow import compute

    places, texts = encoded(cells, rows.reading.missing or ())
    found = compute.index_in(texts, value_set=pyarrow.array([*values], pyarrow.string()))
    codes = _floats(found.fill_null(len(values) if other else -1))
    return np.append(codes, np.nan)[places]


def windows(rows: Rows, cells: Any, length: int | None = None) -> NDArray[np.float32]:
    """Return a column of lists, float32 (N, length), with NaN for missing values and lists.

    Raises `OddCells` for lists of several lengths, or of another length than the given one, and for
    cells that are no lists of numbers.
    """
    import pyarrow
    from pyarrow import compute

    if not is_window(cells.type):
        raise OddCells(f"cells of {cells.type}, and lists")
    lengths = compute.list_value_length(cells)
    found = np.append(compute.unique(lengths.drop_null()).to_numpy(), [])
    if len(found) != 1 or not found[0] or length not in (None, found[0]):
        said = f"{int(found.min())} to {int(found.max())}" if len(found) else "no"
        raise OddCells(f"lists of {said} values" + (f", and {length} are taken" if length else ""))
    try:
        flat = compute.list_flatten(cells).cast(pyarrow.float32(), safe=False)
    except pyarrow.ArrowException as error:
        raise OddCells(f"lists of {cells.type.value_type}") from error
    values = np.full((len(cells), int(found[0])), np.nan, np.float32)
    values[lengths.is_valid().to_numpy()] = np.asarray(flat.to_numpy()).reshape(-1, int(found[0]))
    odd = np.asarray(np.isinf(values).any(axis=1))
    if odd.any():
        raise _odd(rows, odd, cells)
    return values
