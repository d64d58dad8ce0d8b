"""Tables: CSV, Parquet and other files, with columns by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task.datasets.data import Data, Split, holdout
from edgewire.task.datasets.files import data_of, files_of
from edgewire.task.errors import MissingOption, TaskError
from edgewire.task.tables import cells
from edgewire.task.tables.cells import OddCells
from edgewire.task.tables.columns import Column, Columns, Reading, plain_of
from edgewire.task.tables.files import Rows, read, tidy
from edgewire.task.tables.learn import Wishes, learn, survey_of
from edgewire.task.tables.read import inputs_of, lacking, located, rows_of, targets_of
from edgewire.task.tables.survey import LEAST_ROWS, Survey
from edgewire.task.tables.transform import TableTransform
from edgewire.task.tensors import Tensors, count, leaves
from edgewire.task.tensors import rows as rows_between
from edgewire.task.transforms import Standardize

CSV, PARQUET = (".csv", ".csv.gz"), (".parquet",)
ANY = (*CSV, ".tsv", ".tsv.gz", ".txt", ".data", ".parquet", ".pq")
MOST_NAMED = 20  # columns that a message names
log = getLogger("edgewire")
_learned = dict[tuple[Any, ...], Data]()  # the last table whose columns were learned, if any


def table(
    root: str | None = None,
    target: str | Sequence[str] | None = "target",
    inputs: str | Sequence[str] | None = None,
    group: str | None = None,
    classes: Sequence[str] | None = None,
    columns: str | None = None,
    kinds: Mapping[str, str] | None = None,
    skip: Sequence[str] | None = None,
    drop_missing: bool = False,
    delimiter: str | None = None,
    decimal: str | None = None,
    missing: Sequence[str] | None = None,
    header: bool | None = None,
    encoding: str | None = None,
    test_share: float = 0.2,
    on_device: bool = False,
) -> Data:
    """Return a table of any columns: numbers, texts, dates, and lists of numbers as windows.

    Inputs are raw rows, as `TableTransform` takes them, and the transform is one. A target of text,
    of true and false, or of two whole numbers is a class, int64 (N,). A number is float32 (N,), and
    several are float32 (N, k).

    Args:
        root: a file or folder, see `files_of`.
        target: the column to predict; several for several numbers a sample; None for none.
        inputs: the features; None: all columns that are no target and no group, without indices,
            constants, and columns without values.
        group: the column with the user, writer or sensor of a row.
        classes: the names of all classes; None: those in the files.
        columns: the columns with their statistics, as `Columns.to_json` gives them; None: they are
            learned from the files.
        kinds: the kind of a column by its name: number, category, date, window, or the format of a
            date, such as %d/%m/%Y.
        skip: columns to leave out.
        drop_missing: whether rows without a target are left out.
        delimiter, decimal, missing, header, encoding: how files of text are read, see `Reading`.
        test_share: the share of the rows that are the test split if there are no files for it.
        on_device: whether the table is a device's own: all rows are for training, by `columns`.

    Raises:
        Problems: columns that cannot be taken; all of them, with what mends them.
        TaskError: no such files or columns, a file that cannot be read, or no pyarrow.
    """
    _, wishes = wished(**locals())
    known = None if columns is None else Columns.from_json(columns)
    if on_device and known is None:
        raise MissingOption(
            "a device's own table needs the columns that all devices use: dataset.columns=FILE, or "
            "a table at the server, dataset.root=FILE"
        )
    train_files, test_files = files_of(root, ANY)
    files = [*train_files, *(test_files if not on_device else ())]
    stats = [(str(file.absolute()), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    key = (*stats, len(train_files), str(wishes), drop_missing, test_share, on_device)
    if columns is not None and (*key, columns) in _learned:
        return _learned[*key, columns]
    rows = _read(files, wishes, drop_missing, known)
    cut = rows.starts[len(train_files)][1] if len(files) > len(train_files) else None

    def training(labels: Tensor | None) -> NDArray[np.int64]:
        every = torch.arange(cut or rows.table.num_rows)
        if cut is None and 0 < test_share < 1:
            split = Split(every, () if labels is None else labels)
            every = holdout(split, test_share, by_class=labels is not None)[0].inputs  # type: ignore[assignment]
        return every.numpy()

    found = learn(rows, wishes, training) if known is None else known
    data = _data(rows, found, cut, test_share, on_device, root)
    if known is None:
        _learned.clear()
        _learned[*key, found.to_json()] = data
    return data


def surveyed(index: int, count: int, **options: Any) -> Survey:
    """Return what a node tells of its rows of a table whose columns are not known yet.

    `options`: those of `table`. A device, with `on_device`, has all rows. Otherwise the node has a
    share of them: every one of `count`, from row `index` on. Raises `MissingOption` for few rows.
    """
    given, wishes = wished(**options)
    rows = _read(files_of(given["root"], ANY)[0], wishes, given["drop_missing"])
    if not given["on_device"]:
        own = np.arange(index, rows.table.num_rows, count)
        rows = replace(rows, table=rows.table.take(own), starts=())
    if rows.table.num_rows < LEAST_ROWS:
        raise MissingOption(f"fewer than {LEAST_ROWS} rows: nothing is told of so few")
    return survey_of(rows, wishes)


def wished(**options: Any) -> tuple[Mapping[str, Any], Wishes]:
    """Return all arguments of `table`, and what they say of the columns."""
    bound = signature(table).bind(**options)
    bound.apply_defaults()
    given = bound.arguments
    inputs, classes, missing = given["inputs"], given["classes"], given["missing"]
    return given, Wishes(
        _names(given["target"]), None if inputs is None else _names(inputs),
        next(iter(_names(given["group"])), None),
        {tidy(name): str(kind) for name, kind in (given["kinds"] or {}).items()},
        _names(given["skip"]), None if classes is None else tuple(map(str, classes)),
        Reading(given["delimiter"], given["decimal"], None if missing is None else tuple(missing),
                given["header"], given["encoding"]),
    )  # fmt: skip


def _read(
    files: list[Path], wishes: Wishes, drop_missing: bool, known: Columns | None = None
) -> Rows:
    """Return the rows of files."""
    texts = [name for name, kind in wishes.kinds.items() if kind == "category" or "%" in kind]
    rows = read(files, wishes.reading, texts) if known is None else rows_of(files, known)
    return _with_target(rows, wishes.target) if drop_missing else rows


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return tuple(map(tidy, (names,) if isinstance(names, str) else names or ()))


def _with_target(rows: Rows, target: Sequence[str]) -> Rows:
    """Return the rows that have a value of each target."""
    keep = np.ones(rows.table.num_rows, bool)
    for name in {*target} & {*rows.names}:
        column = rows.table.column(rows.names.index(name))
        keep &= cells.encoded(column, rows.reading.missing or ())[0] >= 0
    if not keep.any():
        raise TaskError(f"{rows.place}: no row has a value of {', '.join(target)}")
    starts = tuple((name, int(keep[:first].sum())) for name, first in rows.starts)
    return replace(rows, table=rows.table.filter(keep), starts=starts)


def _data(
    rows: Rows,
    columns: Columns,
    cut: int | None,
    test_share: float,
    on_device: bool,
    root: str | None,
) -> Data:
    """Return the data of rows; those from `cut` on are for testing; None: a share of them is."""
    inputs, targets = inputs_of(rows, columns), targets_of(rows, columns)
    if on_device:
        _warn_of_unknown(rows, columns, inputs)
    if targets is None and columns.target:
        raise TaskError(f"{rows.place} has {lacking(rows, [columns.target[0].name], 'target')}")
    groups, names = (None, ()) if columns.group is None else _groups(rows, columns.group)
    spans = [(0, count(inputs))] if cut is None else [(0, cut), (cut, count(inputs))]
    data = data_of(
        [rows_between(inputs, *span) for span in spans],
        [() if targets is None else rows_between(targets, *span) for span in spans],
        None if groups is None else [groups[slice(*span)] for span in spans],
        test_share,
        on_device,
        root,
        transform=TableTransform([plain_of(each) for each in columns.features]),
        class_names=columns.classes,
    )
    return replace(data, columns=columns, group_names=names)


def _warn_of_unknown(rows: Rows, columns: Columns, inputs: Tensors) -> None:
    """Log the share of the values of each category that the run's columns lack."""
    scalars = [each.name for each in columns.features if each.kind != "window"]
    shares = (leaves(inputs)[0] < 0).double().mean(0).tolist() if scalars else []
    categories = {each.name for each in columns.features if each.kind == "category"}
    found = [
        f"{100 * share:.2g} % of {name} is unknown"
        for name, share in zip(scalars, shares, strict=True)
        if share and name in categories
    ]
    if found:
        log.warning("%s: %s", rows.place, ", ".join(found[:MOST_NAMED]))


def without_rows(text: str) -> Data:
    """Return the data of a server whose nodes have all of a table; `text`: the columns as JSON."""
    columns = Columns.from_json(text)
    scalars = [each for each in columns.features if each.kind != "window"]
    windows = [each for each in columns.features if each.kind == "window"]
    tensors = [torch.empty(0, len(scalars), dtype=torch.float64)] if scalars else []
    if windows:
        tensors.append(torch.empty(0, len(windows), windows[0].length))
    numbers = torch.empty(0, len(columns.target)) if len(columns.target) > 1 else torch.empty(0)
    split = Split(
        tensors[0] if len(tensors) == 1 else tuple(tensors),
        (numbers.long() if columns.classes else numbers) if columns.target else (),
    )
    transform = TableTransform([plain_of(each) for each in columns.features])
    names = columns.classes
    return Data(split, split, transform, len(names), names, columns=columns)


def _groups(rows: Rows, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the number of each row's group, int64 (N,), and the names of the groups."""
    column = rows.table.column(located(rows, [name], "group")[name])
    try:
        places, texts = cells.encoded(column, rows.reading.missing or ())
    except OddCells as odd:
        raise TaskError(
            f"{rows.place}: the column {name} for dataset.group= has {odd}: name a column of "
            f"single values"
        ) from odd
    if (places < 0).any():
        row = rows.row(int((places < 0).argmax()))
        raise TaskError(
            f"{rows.place}: the column {name} for dataset.group= has no value in {row}: fill it"
        )
    named = texts.to_pylist()
    whole = all(each.lstrip("+-").isdecimal() for each in named)
    order = sorted(range(len(named)), key=lambda at: (int(named[at]) if whole else 0, named[at]))
    ranks = np.empty(len(named), np.int64)
    ranks[order] = np.arange(len(named))
    return torch.from_numpy(ranks[places]), tuple(named[at] for at in order)


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
    """Return a table of numbers in CSV files whose first line has the names of the columns.

    Files may be compressed (.csv.gz). See `_plain` for the arguments.

    Raises:
        TaskError: see `_plain`; or a `delimiter` that is not one character.
    """
    # NA may be a class; an empty cell is missing.
    reading = Reading(delimiter, ".", ("",), header=True)
    suffixes = (*CSV, ".tsv", ".txt") if reading.delimiter == "\t" else CSV
    wishes = _plain(target, inputs, group, index, classes, on_device, reading)
    return _numbers(suffixes, root, wishes, standardize, mean, std, test_share)


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
    """Return a table of numbers in Parquet files. See `csv` for the arguments and errors."""
    wishes = _plain(target, inputs, group, index, classes, on_device, Reading(missing=()))
    return _numbers(PARQUET, root, wishes, standardize, mean, std, test_share)


def _plain(
    target: str | Sequence[str] | None,
    inputs: str | Sequence[str] | None,
    group: str | None,
    index: bool,
    classes: Sequence[str] | None,
    on_device: bool,
    reading: Reading,
) -> Wishes:
    """Return the wishes for a table of numbers. Raises `TaskError` for those that contradict."""
    names = _names(target)
    if on_device and inputs is None:
        raise MissingOption(
            "a device's own table needs the columns that all devices use, in the same order, as in "
            "dataset.inputs=[temperature,humidity]"
        )
    if target is not None and not names:
        raise TaskError("dataset.target=[] names no column: give null for none")
    if classes is not None and not isinstance(target, str):
        raise TaskError("dataset.classes names the classes of one target: give dataset.target=NAME")
    return Wishes(
        names, None if inputs is None else _names(inputs), next(iter(_names(group)), None),
        reading=reading, plain=True,
        classes=None if classes is None else _names(classes), index=index, on_device=on_device,
    )  # fmt: skip


def _numbers(
    suffixes: tuple[str, ...],
    root: str | None,
    wishes: Wishes,
    standardize: bool,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    test_share: float,
) -> Data:
    """Return the data of files with these suffixes, whose inputs are all numbers."""
    if wishes.on_device and standardize and mean is None:
        raise MissingOption(
            "a device's own table needs dataset.mean=[...] and dataset.std=[...], the same at all "
            "devices, a number for each of dataset.inputs; dataset.standardize=false does without"
        )
    train_files, test_files = files_of(root, suffixes)
    files = [*train_files, *(test_files if not wishes.on_device else ())]
    rows = read(files, wishes.reading)
    cut = rows.starts[len(train_files)][1] if len(files) > len(train_files) else None
    found = learn(rows, wishes, lambda _: np.arange(cut or rows.table.num_rows))
    if wishes.inputs is None:
        names = [each.name for each in found.features]
        named = ", ".join([*names[:MOST_NAMED], *["..."] * (len(names) > MOST_NAMED)])
        out = [f"{name!r} ({why}) is left out" for name, why in found.left]
        other = "; ".join(out) or "dataset.inputs=[...] names others"
        log.warning("%s", f"{rows.place}: the inputs are {named}; {other}")
    found = replace(found, features=_scaled(found.features, standardize, mean, std))
    return _data(rows, found, cut, test_share, wishes.on_device, root)


def _scaled(
    features: tuple[Column, ...],
    standardize: bool,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Column, ...]:
    """Return columns with the given means and deviations in place of their own."""
    if not standardize:
        if mean is not None or std is not None:
            raise TaskError("dataset.standardize=false takes no dataset.mean and dataset.std")
        return tuple(replace(each, mean=0.0, std=1.0) for each in features)
    if mean is None and std is None:
        return features
    given = Standardize(tuple(mean or ()), tuple(std or ()))  # checks the numbers
    if len(given.mean) != len(features):
        raise TaskError(
            f"dataset.mean has {len(given.mean)} numbers, and there are {len(features)} inputs: "
            f"give one for each"
        )
    pairs = zip(features, given.mean, given.std, strict=True)
    return tuple(replace(each, mean=float(m), std=float(s)) for each, m, s in pairs)
