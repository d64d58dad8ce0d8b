"""Tables: CSV and Parquet files, with columns by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.task.datasets.data import Data, shown
from edgewire.task.datasets.files import LARGEST_INTEGER, class_ids, class_names, data_of, files_of
from edgewire.task.errors import MissingOption, TaskError
from edgewire.task.transforms import Standardize

if TYPE_CHECKING:  # a device without tables does not need pyarrow, whose import takes a second
    import pyarrow

LARGEST_BLOCK = (1 << 31) - 1  # bytes; pyarrow's limit
MOST_NAMED = 20  # columns that a message names
Reader = Callable[[Path], "pyarrow.Table"]

# Names that pandas gives to the column of an index without a name, in CSV and Parquet files.
INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)*")
log = getLogger("edgewire")
LOOKED_AT = 10_000  # rows of a column in which an error message looks for a text


def csv(
    root: str | None = None,
    target: str | Sequence[str] | None = "target",
    inputs: str | Sequence[str] | None = None,
    group: str | None = None,
    classes: Sequence[str] | None = None,
    standardize: bool = True,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    test_share: float = 0.2,
    on_device: bool = False,
    delimiter: str = ",",
    index: bool = False,
) -> Data:
    """Return a table in CSV files whose first line has the names of the columns.

    Files may be compressed (.csv.gz). See `table` for the arguments.

    Raises:
        TaskError: see `table`; or a `delimiter` that is not one character.
    """
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise TaskError(f"dataset.delimiter={delimiter!r}: give one character, such as ';'")

    def read(file: Path) -> pyarrow.Table:
        from pyarrow import csv as reader

        size = file.stat().st_size * (8 if file.name.lower().endswith(".gz") else 1)
        return reader.read_csv(
            file,
            # One block for the whole file: a column's type comes from all its values.
            reader.ReadOptions(block_size=min(size + (1 << 20), LARGEST_BLOCK)),
            reader.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            # NA may be a class; an empty cell is missing.
            reader.ConvertOptions(null_values=[""], strings_can_be_null=True),
        )

    columns = Columns(target, inputs, group, index)
    scale = Scaling(standardize, mean, std)
    suffixes = (".csv", ".csv.gz", ".tsv", ".txt") if delimiter == "\t" else (".csv", ".csv.gz")
    return table(read, suffixes, root, columns, scale, classes, test_share, on_device)


def parquet(
    root: str | None = None,
    target: str | Sequence[str] | None = "target",
    inputs: str | Sequence[str] | None = None,
    group: str | None = None,
    classes: Sequence[str] | None = None,
    standardize: bool = True,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    test_share: float = 0.2,
    on_device: bool = False,
    index: bool = False,
) -> Data:
    """Return a table in Parquet files. See `table` for the arguments and errors."""

    def read(file: Path) -> pyarrow.Table:
        from pyarrow import parquet as reader

        return reader.ParquetFile(file).read()

    columns, scale = Columns(target, inputs, group, index), Scaling(standardize, mean, std)
    return table(read, (".parquet",), root, columns, scale, classes, test_share, on_device)


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns.

    `target`: the column to predict; several for several values a sample; None for none. `inputs`:
    the features; None: all columns that are no target and no group. `group`: the column with the
    user, writer or sensor of a row. `index`: whether columns of pandas' index (`INDEX`) are
    features if `inputs` is None.
    """

    target: str | Sequence[str] | None
    inputs: str | Sequence[str] | None
    group: str | None
    index: bool


@dataclass(frozen=True)
class Scaling:
    """How features are standardised: by `mean` and `std`, or by those of the training split."""

    standardize: bool
    mean: Sequence[float] | None
    std: Sequence[float] | None


@dataclass
class Rows:
    """The rows of files: features float64 (N, F), targets and groups as they are in the files.

    `names`: the features' columns. `targets`, `groups`: None if the table has none.
    """

    names: Sequence[str]
    features: NDArray[np.float64]
    targets: Any
    groups: Any


def table(
    read: Reader,
    suffixes: tuple[str, ...],
    root: str | None,
    columns: Columns,
    scale: Scaling,
    classes: Sequence[str] | None,
    test_share: float,
    on_device: bool,
) -> Data:
    """Return a table as a data set: inputs float32 (N, F), and targets.

    A target of text or of true and false is a class, int64 (N,); so is one of whole numbers if
    `classes` names them. Other whole numbers are int64 (N,), and other numbers float32 (N,).
    Several targets are float32 (N, k).

    Args:
        read: reads a file; `suffixes`: the names of its kind of files.
        root: a file or folder, see `files_of`.
        columns: the columns to use.
        scale: how features are standardised.
        classes: the names of all classes; None: those in the training and test rows.
        test_share: the share of the rows that are the test split if there are no files for it.
        on_device: whether the table is a device's own. All rows are for training then, and what all
            devices must share has to be given: the inputs, the classes, means and deviations.

    Raises:
        TaskError: no such files or columns, a file that cannot be read, cells that are empty, no
            numbers or not finite, an unknown class, or no pyarrow.
    """
    if on_device and columns.inputs is None:
        raise MissingOption(
            "a device's own table needs the columns that all devices use, in the same order, as in "
            "dataset.inputs=[temperature,humidity]"
        )
    if on_device and scale.standardize and scale.mean is None:
        raise MissingOption(
            "a device's own table needs dataset.mean=[...] and dataset.std=[...], the same at all "
            "devices, a number for each of dataset.inputs; dataset.standardize=false does without"
        )
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise TaskError(
            "tables need the package pyarrow: pip install pyarrow, or use dataset=npz"
        ) from error
    train_files, test_files = files_of(root, suffixes)
    parts = [_rows(train_files, read, columns)]
    if test_files and not on_device:
        parts.append(_rows(test_files, read, replace(columns, inputs=parts[0].names)))
    _standardize(parts, scale)
    targets, names = _targets(parts, classes, on_device)
    groups = None if columns.group is None else [part.groups for part in parts]
    inputs = [torch.from_numpy(part.features.astype(np.float32)) for part in parts]
    return data_of(inputs, targets, groups, test_share, on_device, root, class_names=names)


def _standardize(parts: list[Rows], scale: Scaling) -> None:
    """Standardise the features of all parts; without given numbers by those of the first part."""
    if not scale.standardize:
        if scale.mean is not None or scale.std is not None:
            raise TaskError("dataset.standardize=false takes no dataset.mean and dataset.std")
        return
    first = parts[0].features
    if scale.mean is None and scale.std is None:
        mean, std = first.mean(0), first.std(0)
        # A constant column becomes zero. Its mean may be rounded, and its deviation is not 0 then.
        constant = first.min(0) == first.max(0)
        mean, std = np.where(constant, first[0], mean), np.where(constant, 1, std)
    else:
        given = Standardize(tuple(scale.mean or ()), tuple(scale.std or ()))  # checks the numbers
        mean, std = np.array(given.mean), np.array(given.std)
        if len(mean) != first.shape[1]:
            raise TaskError(
                f"dataset.mean has {len(mean)} numbers, and there are {first.shape[1]} inputs: "
                f"give one for each"
            )
    for part in parts:
        part.features -= mean
        part.features /= std


def _targets(
    parts: Sequence[Rows], classes: Sequence[str] | None, on_device: bool
) -> tuple[list[Any], tuple[str, ...]]:
    """Return the targets of each part, and the names of the classes; () for other targets."""
    columns = [part.targets for part in parts if part.targets is not None]
    if not columns:
        if classes is not None:
            raise TaskError("dataset.classes names the classes of a target: give dataset.target=")
        return [()] * len(parts), ()
    kinds = {column.dtype.kind for column in columns}
    if kinds <= {"i", "f"} and classes is None:
        kind = np.float32 if "f" in kinds else np.int64
        return [torch.from_numpy(column.astype(kind)) for column in columns], ()
    texts = [_as_names(column) for column in columns]
    every = {str(name) for text in texts for name in np.unique(text)}
    names = class_names(every, classes, on_device)
    return [class_ids(text, names) for text in texts], names


def _as_names(column: NDArray[Any]) -> NDArray[np.str_]:
    """Return a target's values as the names of classes."""
    if column.ndim > 1:
        raise TaskError("dataset.classes is for one target: give one column as dataset.target=")
    if column.dtype.kind == "f":
        if not ((column == np.round(column)) & (np.abs(column) < LARGEST_INTEGER)).all():
            raise TaskError(
                "dataset.classes is for classes, and the target has broken or larger numbers"
            )
        column = column.astype(np.int64)
    return column.astype(np.str_)


def _rows(files: Sequence[Path], read: Reader, columns: Columns) -> Rows:
    """Return the rows of all files; all have the columns of the first."""
    parts = list[Rows]()
    for file in files:
        parts.append(_rows_of(file, _content(file, read), columns))
        columns = replace(columns, inputs=parts[0].names)
    return Rows(
        parts[0].names,
        np.concatenate([part.features for part in parts]),
        None if columns.target is None else np.concatenate([part.targets for part in parts]),
        None if columns.group is None else np.concatenate([part.groups for part in parts]),
    )


def _content(file: Path, read: Reader) -> pyarrow.Table:
    """Return a file's table, with at least one row."""
    try:
        content = read(file)
        found = content.column_names  # fails for names that are not UTF-8
    except Exception as error:  # pyarrow raises a dozen types
        reason = " ".join(str(error).split())[:200]
        raise TaskError(f"{shown(file)} cannot be read as a table ({reason})") from error
    if not content.num_rows or not found:
        raise TaskError(f"{shown(file)} has no rows: add some, or remove it")
    return content


def _rows_of(file: Path, content: pyarrow.Table, columns: Columns) -> Rows:
    one = isinstance(columns.target, str)
    targets, names = _as_list(columns.target), _as_list(columns.inputs)
    used = {*targets, *_as_list(columns.group)}
    if columns.inputs is None:
        free = [name for name in dict.fromkeys(content.column_names) if name not in used]
        names = [name for name in free if columns.index or not INDEX.fullmatch(name)]
        log.warning("%s", _taken(file, names, [name for name in free if INDEX.fullmatch(name)]))
    if not names or len(set(names)) < len(names) or used & set(names):
        raise TaskError(
            f"{shown(file)}: dataset.inputs= must name at least one column, each once, and not the "
            f"target or the group"
        )
    if columns.target is not None and not targets:
        raise TaskError("dataset.target=[] names no column: give null for none")
    goals: NDArray[Any] | None = None
    if one:
        goals = _values(file, content, targets[0], "target")
    elif targets:
        goals = np.stack([_numbers(file, content, name, "target") for name in targets], 1)
    features = np.stack([_numbers(file, content, name, "inputs") for name in names], 1)
    group = columns.group
    groups = None if group is None else _values(file, content, group, "group")
    return Rows(names, features, goals, groups)


def _taken(file: Path, names: Sequence[str], indices: Sequence[str]) -> str:
    """Return a line that says which columns are inputs; `indices`: columns of pandas' index."""
    more = ", ..." if len(names) > MOST_NAMED else ""
    said = f"{shown(file)}: the inputs are {', '.join(names[:MOST_NAMED])}{more}"
    if not indices:
        return f"{said} (dataset.inputs=[...] names others)"
    taken = "too: dataset.index=false leaves it out"
    left = "and is left out: dataset.index=true takes it"
    return f"{said}; {indices[0]!r} is pandas' index {taken if indices[0] in names else left}"


def _as_list(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _column(file: Path, content: Any, name: str, key: str) -> Any:
    """Return a column without missing values. Raises `TaskError` for others."""
    import pyarrow

    number = content.column_names.count(name)
    if number != 1:
        has = ", ".join(map(str, content.column_names[:20]))
        said = f"has no column {name}" if not number else f"has {number} columns {name}"
        one = "" if len(content.column_names) > 1 else "; dataset.delimiter= separates columns"
        raise TaskError(f"{shown(file)} {said}: dataset.{key}= names columns of {has}{one}")
    column = content.column(name)
    if pyarrow.types.is_binary(column.type):
        raise TaskError(f"{shown(file)}: the column {name} is not UTF-8: convert the file")
    if column.null_count:
        row = column.is_null().to_numpy().argmax() + 1
        raise TaskError(
            f"{shown(file)}: the column {name} has no value in {column.null_count} of "
            f"{len(column)} rows, first in row {row}: fill them, or name only other columns as "
            f"dataset.{key}="
        )
    return column


def _numbers(file: Path, content: Any, name: str, key: str) -> NDArray[np.float64]:
    """Return a column of finite numbers, float64 (N,)."""
    import pyarrow

    column = _column(file, content, name, key)
    kind, kinds = column.type, pyarrow.types
    numeric = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    if not any(is_kind(kind) for is_kind in numeric):
        row, found = _first_odd(column)
        raise TaskError(
            f"{shown(file)}: the column {name} has {found[:20]!r} in row {row} ({kind}), and "
            f"numbers are taken: name only columns of numbers as dataset.{key}=[...]"
        )
    values = np.asarray(column.to_numpy().astype(np.float64))
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise TaskError(
            f"{shown(file)}: the column {name} has {values[row]} in row {row + 1}: finite numbers "
            f"are taken"
        )
    return values


def _first_odd(column: Any) -> tuple[int, str]:
    """Return the row, from 1 on, and the text of the first value of a column that is no number."""
    for row, value in enumerate(column.slice(0, LOOKED_AT).to_pylist(), 1):
        try:
            float(str(value))
        except ValueError:
            return row, str(value)
    return 1, str(column[0])


def _values(file: Path, content: Any, name: str, key: str) -> NDArray[Any]:
    """Return a column as int64, float64 or text, (N,); true and false are text."""
    import pyarrow

    column = _column(file, content, name, key)
    kinds = pyarrow.types
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if kinds.is_integer(kind):
        values = np.asarray(column.to_numpy())
        if not (large := values > LARGEST_INTEGER).any():
            return values.astype(np.int64)
        if key == "group":
            return values.astype(np.str_)
        row = int(large.argmax())
        raise TaskError(
            f"{shown(file)}: the column {name} has {values[row]} in row {row + 1}: whole numbers "
            f"up to 2^63 - 1 are taken"
        )
    if kinds.is_boolean(kind):
        return np.where(column.to_numpy(), "True", "False")
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return np.asarray(column.to_numpy().astype(np.str_))
    if key == "group":
        try:
            return np.asarray(column.cast(pyarrow.string()).to_numpy().astype(np.str_))
        except pyarrow.ArrowNotImplementedError as error:  # a struct or a list
            raise TaskError(
                f"{shown(file)}: the column {name} for dataset.group= is {kind}: name a column of "
                f"single values"
            ) from error
    return _numbers(file, content, name, key)
