"""Reads tables into Arrow: files of text, Parquet files, and pandas' DataFrames."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewire.task.datasets.data import shown
from edgewire.task.errors import TaskError
from edgewire.task.tables.columns import MISSING, Reading

if TYPE_CHECKING:  # a device without tables does not need pyarrow, whose import takes a second
    import pyarrow

LARGEST_BLOCK = (1 << 31) - 1  # bytes; pyarrow's limit
HEAD = 1 << 18  # bytes of a file by which its form is guessed
LOOKED_AT = 200  # rows of them
DELIMITERS = ",;\t|"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
WITH_COMMA, GROUPED = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d{1,3}(,\d{3})+")
DATES = ("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S")  # beside ISO 8601; none is ambiguous


@dataclass(frozen=True)
class Rows:
    """The rows of a table; `reading`: as they were read, `decimal` and `missing` included.

    `place`: the file or folder in messages. `starts`: each file's name and first row. `partial`:
    columns of the first file that another one lacks, with its name.
    """

    table: pyarrow.Table
    place: str
    reading: Reading
    starts: tuple[tuple[str, int], ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order; two may be equal."""
        return list(self.table.column_names)

    def row(self, number: int) -> str:
        """Return a row, from 0 on, for messages, which count from 1 in each file."""
        name, first = next((each for each in reversed(self.starts) if each[1] <= number), ("", 0))
        return f"row {number - first + 1}" + (f" of {name}" if len(self.starts) > 1 else "")


def read(source: Any, reading: Reading, texts: Collection[str] = ()) -> Rows:
    """Return the rows of a table.

    Args:
        source: a file, a list of files with the same columns, a DataFrame, or a pyarrow.Table.
        reading: how files of text are read.
        texts: columns that are read as text, not as the numbers that they look like.

    Raises:
        TaskError: a file that cannot be read, without rows, or without a column of the first file;
            or no pyarrow.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise TaskError(
            "tables need the package pyarrow: pip install pyarrow, or use dataset=npz"
        ) from error
    if isinstance(source, str | Path):
        source = [Path(source)]
    missing = MISSING if reading.missing is None else reading.missing
    reading = replace(reading, missing=missing)
    if not isinstance(source, list | tuple):
        table = source if isinstance(source, pyarrow.Table) else _of_frame(source)
        return Rows(_named(table), "the table", replace(reading, decimal=reading.decimal or "."))
    found = [_content(file, reading, texts) for file in source]
    starts = [0]
    for table, _ in found:
        starts.append(starts[-1] + table.num_rows)
    place = source[0] if len(source) == 1 else source[0].parent
    tables = [table for table, _ in found]
    partial = {
        name: file.name
        for file, table in zip(source, tables, strict=True)
        for name in {*tables[0].column_names} - {*table.column_names}
    }
    return Rows(
        _joined(tables, partial) if len(tables) > 1 else tables[0],
        shown(place),
        replace(reading, decimal=found[0][1]),
        tuple(zip([file.name for file in source], starts, strict=False)),
        partial,
    )


def _named(table: pyarrow.Table) -> pyarrow.Table:
    """Return a table with tidy names, in which only texts are in dictionaries."""
    from pyarrow import types

    for place, kind in enumerate(table.schema.types):
        if types.is_dictionary(kind) and not types.is_string(kind.value_type):
            plain = table.column(place).cast(kind.value_type)
            table = table.set_column(place, table.column_names[place], plain)
    return table.rename_columns([tidy(name) for name in table.column_names])


def tidy(text: Any) -> str:
    """Return a text in one line, without spaces at its ends."""
    return " ".join(str(text).split())


def _of_frame(frame: Any) -> pyarrow.Table:
    """Return a DataFrame's table; a column of several types becomes text."""
    import pyarrow

    columns = []
    for place in range(len(frame.columns)):
        column = frame.iloc[:, place]
        try:
            columns.append(pyarrow.array(column, from_pandas=True))
        except pyarrow.ArrowException:
            pairs = zip(column, column.isna(), strict=True)
            texts = [None if none else str(cell) for cell, none in pairs]
            columns.append(pyarrow.array(texts, pyarrow.string()))
    return pyarrow.table(columns, [str(name) for name in frame.columns])


def _joined(tables: list[pyarrow.Table], partial: Collection[str]) -> pyarrow.Table:
    """Return the rows of all tables, without the columns `partial`, which some lack.

    A column whose type differs is one of numbers if all of its types are, else of text.
    """
    import pyarrow
    from pyarrow import types

    first = tables[0]
    named = any(table.column_names != first.column_names for table in tables)
    columns = dict[int, Any]()
    for place, name in enumerate(first.column_names):
        if name in partial:
            continue
        parts = [table.column(name if named else place) for table in tables]
        kinds = {part.type for part in parts if not types.is_null(part.type)}
        if len(kinds) > 1:
            numbers = all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds)
            kinds = {pyarrow.float64() if numbers else pyarrow.string()}
        kind = next(iter(kinds), pyarrow.null())
        chunks = [chunk for part in parts for chunk in part.cast(kind).chunks]
        columns[place] = pyarrow.chunked_array(chunks, kind)
    return pyarrow.table([*columns.values()], [first.column_names[place] for place in columns])


def _content(file: Path, reading: Reading, texts: Collection[str]) -> tuple[pyarrow.Table, str]:
    """Return a file's table, with at least one row, and the decimal character."""
    from pyarrow import parquet

    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
        if magic == b"PAR1":
            table, decimal = parquet.ParquetFile(file).read(), "."
        elif magic == b"PK\3\4":
            raise TaskError(f"{shown(file)} is a workbook or an archive: save it as a CSV file")
        else:
            table, decimal = _of_text(file, reading, texts, zipped=magic[:2] == b"\x1f\x8b")
        table = _named(table)  # fails for names that are not UTF-8
    except TaskError:
        raise
    except Exception as error:  # pyarrow raises a dozen types
        reason = " ".join(str(error).split())[:200]
        raise TaskError(f"{shown(file)} cannot be read as a table ({reason})") from error
    if not table.num_rows or not table.column_names:
        raise TaskError(f"{shown(file)} has no rows: add some, or remove it")
    return table, decimal


def _of_text(
    file: Path, reading: Reading, texts: Collection[str], zipped: bool
) -> tuple[pyarrow.Table, str]:
    import pyarrow
    from pyarrow import csv as reader

    def opened() -> Any:
        return pyarrow.input_stream(str(file), compression="gzip" if zipped else None)

    encoding = reading.encoding or "utf-8"
    with opened() as stream:
        head = stream.read(HEAD)
    text = head.decode(encoding, "replace").removeprefix("\ufeff")
    whole = len(head) < HEAD
    delimiter = reading.delimiter or _delimiter(text, whole)
    first, *others = _records(text, delimiter, whole) or [[]]
    decimal = reading.decimal or _decimal([*others, first], delimiter)
    header = _has_names(first) if reading.header is None else reading.header
    source: Any = opened()
    size = file.stat().st_size * (8 if zipped else 1)
    if delimiter == " ":  # any number of spaces are one delimiter
        content = re.sub(rb"[ \t]+", b" ", source.read())
        content = re.sub(rb"(?m)^ | (?=\r?$)", b"", content)
        source, size = pyarrow.BufferReader(content), len(content)
    names = None if header else [f"column{number + 1}" for number in range(len(first))]
    table = reader.read_csv(
        source,
        # One block for the whole file: a column's type comes from all its values.
        reader.ReadOptions(
            block_size=min(size + (1 << 20), LARGEST_BLOCK), column_names=names, encoding=encoding
        ),
        reader.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        reader.ConvertOptions(
            null_values=list(reading.missing or ()),
            strings_can_be_null=True,
            decimal_point=decimal,
            column_types={name: pyarrow.string() for name in names or first if tidy(name) in texts},
            auto_dict_encode=True,
            auto_dict_max_cardinality=LARGEST_BLOCK,
            timestamp_parsers=[reader.ISO8601, *DATES],
        ),
    )
    return table, decimal


def _records(text: str, delimiter: str, whole: bool) -> list[list[str]]:
    """Return the cells of the first rows of a text; `whole`: whether the text is the whole file."""
    if delimiter == " ":
        text = re.sub(r"(?m)^ | $", "", re.sub(r"[ \t]+", " ", text))
    found = list[list[str]]()
    try:
        for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if record:
                found.append(record)
            if len(found) > LOOKED_AT:
                break
    except csv.Error:  # a cell of more than 128 kB, or a byte 0
        pass
    return found if whole or len(found) < 2 else found[:-1]


def _delimiter(text: str, whole: bool) -> str:
    """Return the delimiter that gives all rows one number of cells, at least 2; else a comma."""
    for delimiters in (DELIMITERS, " "):
        widths = {}
        for each in delimiters:
            counts = {len(record) for record in _records(text, each, whole)}
            widths[each] = counts.pop() if len(counts) == 1 else 0
        best = max(widths, key=lambda each: widths[each])
        if widths[best] > 1:
            return best
    return max(DELIMITERS, key=text.partition("\n")[0].count)


def _decimal(records: Sequence[Sequence[str]], delimiter: str) -> str:
    """Return the decimal character; 1,234 beside the delimiter `,` may be a thousand."""
    cells = [cell.strip() for record in records for cell in record]
    commas = [cell for cell in cells if WITH_COMMA.fullmatch(cell)]
    if not commas or any(re.fullmatch(r"[+-]?\d*\.\d+", cell) for cell in cells):
        return "."
    grouped = all(GROUPED.fullmatch(cell) for cell in commas)
    return "." if delimiter == "," and grouped else ","


def _has_names(first: Sequence[str]) -> bool:
    """Return whether the first line names the columns: no cell is a number, but places or years."""
    cells = [cell.strip().replace(",", ".") for cell in first if cell]
    numbers = [cell for cell in cells if re.fullmatch(NUMBER, cell)]
    whole = len({*numbers}) == len(numbers) and all(cell.isdigit() for cell in numbers)
    years = all(re.fullmatch("(19|20)..", cell) for cell in numbers)
    return whole and (years or len(numbers) == len(cells))
