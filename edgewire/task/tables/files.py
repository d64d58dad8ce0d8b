"""Reads tables into Arrow: files of text, Parquet files, and pandas' DataFrames."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
from logging import getLogger
from pathlib import Path
from typing import Any

from edgewire.task.datasets.data import reads_as, shown
from edgewire.task.errors import TaskError, errors_as
from edgewire.task.tables import arrow
from edgewire.task.tables.arrow import Table, parquet, pyarrow, types
from edgewire.task.tables.columns import MISSING, Reading

LARGEST_BLOCK = (1 << 31) - 1  # bytes; pyarrow's limit
HEAD = 1 << 18  # bytes of a file by which its form is guessed
LOOKED_AT = 200  # rows of them
LARGE = 1 << 24  # bytes that are decoded at once
DELIMITERS = ",;\t|"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
# numbers with signs between thousands, by the decimal character
THOUSANDS = {".": r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$", ",": r"^[+-]?\d{1,3}(\.\d{3})+(,\d+)?$"}
CLOCKS = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")
DATES = tuple(day + clock for day in ("%Y-%m-%d", "%d.%m.%Y") for clock in CLOCKS)  # unambiguous
log = getLogger("edgewire")


@dataclass(frozen=True)
class Rows:
    """The rows of a table; `reading`: as they were read, `decimal` and `missing` included.

    `place`: the file or folder in messages. `starts`: each file's name and first row.
    """

    table: Table
    place: str
    reading: Reading
    starts: tuple[tuple[str, int], ...] = ()

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
        TaskError: a file that cannot be read, or without rows; or no pyarrow.
    """
    reading = replace(reading, missing=MISSING if reading.missing is None else reading.missing)
    files = [Path(source)] if isinstance(source, str | Path) else source
    if not isinstance(files, list | tuple):
        table = source if isinstance(source, pyarrow.Table) else _of_frame(source)
        return Rows(_named(table), "the table", replace(reading, decimal=reading.decimal or "."))
    found = [_content(file, reading, texts) for file in files]
    tables = [table for table, _ in found]
    starts = accumulate((table.num_rows for table in tables), initial=0)
    place = shown(files[0] if len(files) == 1 else files[0].parent)
    return Rows(
        _joined(tables, place) if len(tables) > 1 else tables[0],
        place,
        replace(reading, decimal=found[0][1]),
        tuple(zip([file.name for file in files], starts, strict=False)),
    )


def _named(table: Table) -> Table:
    """Return a table with tidy names, in which only texts are in dictionaries."""
    for place, kind in enumerate(table.schema.types):
        if types.is_dictionary(kind) and not types.is_string(kind.value_type):
            plain = table.column(place).cast(kind.value_type)
            table = table.set_column(place, table.column_names[place], plain)
    return table.rename_columns([tidy(name) for name in table.column_names])


def tidy(text: Any) -> str:
    """Return a text in one line, without spaces at its ends."""
    return " ".join(str(text).split())


def _of_frame(frame: Any) -> Table:
    """Return a DataFrame's table; a column of several types becomes text."""
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


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text, by itself or as a dictionary."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(of(kind) for of in (types.is_string, types.is_large_string, types.is_string_view))


def _joined(tables: list[Table], place: str) -> Table:
    """Return the rows of all tables, with the columns that all have.

    A column that is text in one of them is text. Raises `TaskError` for other types that differ.
    """
    columns = [{*table.column_names} for table in tables]
    names = [name for name in tables[0].column_names if all(name in each for each in columns)]
    if odd := set[str]().union(*columns) - {*names}:
        log.warning("%s: columns that some files lack are left out: %s", place, sorted(odd)[:20])
    with errors_as(f"{place}: its files differ"):
        kept = [each.select(names) for each in tables]
        for at, name in enumerate(names):
            kinds = {each.field(at).type for each in kept}
            if len(kinds) > 1 and any(map(is_text, kinds)):
                texts = [each.column(at).cast(pyarrow.string()) for each in kept]
                pairs = zip(kept, texts, strict=True)
                kept = [each.set_column(at, name, text) for each, text in pairs]
        return pyarrow.concat_tables(kept, promote_options="permissive")


def _content(file: Path, reading: Reading, texts: Collection[str]) -> tuple[Table, str]:
    """Return a file's table, with at least one row, and the decimal character."""
    cure = "save it as a CSV file in UTF-8, with as many cells in each row"
    cure += "; task=table finds the delimiter" * (reading.delimiter is not None)
    with reads_as(file, "a table", cure):
        with file.open("rb") as opened:
            magic = opened.read(4)
        if magic == b"PAR1":
            table, decimal = parquet.ParquetFile(file).read(), "."
        elif magic == b"PK\3\4":
            raise ValueError("it is a workbook or an archive")
        else:
            table, decimal = _of_text(file, reading, texts, zipped=magic[:2] == b"\x1f\x8b")
        table = _named(table)  # fails for names that are not UTF-8
    if not table.num_rows or not table.column_names:
        raise TaskError(f"{shown(file)} has no rows: add some, or remove it")
    return table, decimal


def _of_text(
    file: Path, reading: Reading, texts: Collection[str], zipped: bool
) -> tuple[Table, str]:
    compression = "gzip" if zipped else None
    with pyarrow.input_stream(str(file), compression=compression) as stream:
        head, encoding = stream.read(HEAD), "utf-8"
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            for part in chain([head], iter(partial(stream.read, LARGE), b"")):
                decoder.decode(part)
        except UnicodeDecodeError:  # as Excel and older programs write tables
            encoding = (
                "utf-16" if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "cp1252"
            )
            log.warning("%s is no UTF-8: it is read as %s", shown(file), encoding)
    text = head.decode(encoding, "replace").removeprefix("\ufeff")
    delimiter = reading.delimiter or _delimiter(text)
    first, *others = _records(text, delimiter) or [[]]
    decimal = reading.decimal or _decimal([*others, first], delimiter, reading.usual)
    header = _has_names(first) if reading.header is None else reading.header
    source = pyarrow.input_stream(str(file), compression=compression)
    size = file.stat().st_size * (8 if zipped else 1)
    if delimiter == " ":
        content = _single_spaces(source.read().decode(encoding)).encode(encoding)
        source, size = pyarrow.BufferReader(content), len(content)
    names = None if header else [f"column{number + 1}" for number in range(len(first))]
    rows = _records(text, delimiter, HEAD)[header:]
    texts = {*texts, *_codes(rows, names or first, reading.missing or ())}
    table = arrow.csv.read_csv(
        source,
        # One block for the whole file: a column's type comes from all its values.
        arrow.csv.ReadOptions(
            block_size=min(size + (1 << 20), LARGEST_BLOCK), column_names=names, encoding=encoding
        ),
        arrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        arrow.csv.ConvertOptions(
            null_values=list(reading.missing or ()),
            strings_can_be_null=True,
            decimal_point=decimal,
            column_types={name: pyarrow.string() for name in names or first if tidy(name) in texts},
            auto_dict_encode=True,
            auto_dict_max_cardinality=LARGEST_BLOCK,
            timestamp_parsers=[arrow.csv.ISO8601, *DATES],
        ),
    )
    return table, decimal


def _single_spaces(text: str) -> str:
    """Return a text in which one space separates the cells of a line."""
    return re.sub(r"(?m)^ | $", "", re.sub(r"[ \t]+", " ", text.replace("\r", "")))


def _codes(
    rows: Sequence[Sequence[str]], names: Sequence[str], missing: Sequence[str]
) -> list[str]:
    """Return the names of the columns of codes, which would lose their zeros as numbers."""
    columns = zip(*(row for row in rows if len(row) == len(names)), strict=True)
    texts = [{cell.strip() for cell in column} - {*missing} for column in columns]
    return [tidy(name) for name, each in zip(names, texts, strict=False) if are_codes(each)]


def are_codes(texts: Collection[str]) -> bool:
    """Return whether all texts have equally many digits, and some begin with 0, such as 01067."""
    digits = all(text.isdecimal() for text in texts) and len({*map(len, texts)}) == 1
    return digits and any(text[0] == "0" and text[1:] for text in texts)


def _records(text: str, delimiter: str, most: int = LOOKED_AT) -> list[list[str]]:
    """Return the cells of the first rows of a file's start, of which the last row may be cut."""
    if delimiter == " ":
        text = _single_spaces(text)
    records, found = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), []
    with suppress(csv.Error):  # a cell of more than 128 kB, or a byte 0
        found += [record for record in islice(records, most) if record]
    return found[:-1] if len(text) >= HEAD // 4 and len(found) > 1 else found


def _delimiter(text: str) -> str:
    """Return the delimiter that gives all rows one number of cells, at least 2; else a comma."""

    def width(delimiter: str) -> int:
        counts = {len(record) for record in _records(text, delimiter)}
        return counts.pop() if len(counts) == 1 else 0

    for best in (max(DELIMITERS, key=width), " "):
        if width(best) > 1:
            return best
    return max(DELIMITERS, key=text.partition("\n")[0].count)


def _decimal(records: Sequence[Sequence[str]], delimiter: str, usual: str | None) -> str:
    """Return the decimal character: a comma if more numbers have one than have a point.

    If as many have each, or none has one, it is the `usual` one. Groups of three digits, as in
    1,234, say nothing beside other numbers or the delimiter `,`.
    """
    cells = {cell.strip() for record in records for cell in record}
    groups = {sign: rf"[+-]?\d{{1,3}}(\{sign}\d{{3}})+" for sign in ",."}
    numbers = {sign: rf"({groups[other]}|[+-]?\d*)\{sign}\d+" for sign, other in (",.", ".,")}

    def count(form: str, but: str = "$") -> int:
        return sum(not re.fullmatch(but, each) for each in cells if re.fullmatch(form, each))

    comma, point = (count(numbers[sign], groups[sign]) for sign in ",.")
    if usual and comma == point:
        return usual
    unsure = not point and count(groups[","]) and not count(groups["."]) and delimiter != ","
    return "," if comma > point or unsure else "."


def _has_names(first: Sequence[str]) -> bool:
    """Return whether the first line names the columns: it has no number, or only places."""
    cells = [cell.strip().replace(",", ".") for cell in first if cell]
    numbers = [cell for cell in cells if re.fullmatch(NUMBER, cell)]
    return not numbers or cells == [*map(str, range(len(cells)))]
