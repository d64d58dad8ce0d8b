"""Tables: CSV, Parquet and other files, with columns by name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewire.task.datasets.data import Data, Split
from edgewire.task.datasets.files import data_of, files_of, group_ids
from edgewire.task.errors import MissingOption, TaskError, listed
from edgewire.task.tables.columns import MISSING, Columns, Reading, plain_of
from edgewire.task.tables.files import Rows, read, tidy
from edgewire.task.tables.learn import Problem, Wishes, learn, overrides_of, survey_of
from edgewire.task.tables.read import (
    OddCells,
    encoded,
    expect_there,
    inputs_of,
    located,
    random_rows,
    rows_of,
    targets_of,
)
from edgewire.task.tables.survey import LEAST_ROWS, Survey
from edgewire.task.tables.transform import TableTransform
from edgewire.task.tensors import only
from edgewire.task.transforms import Standardize

PLAIN = (".csv", ".csv.gz", ".tsv", ".parquet")
ANY = (*PLAIN, ".tsv.gz", ".txt", ".data", ".pq")
MOST_LIKE_CLASSES = 10  # whole numbers of a target that may be meant as classes
log = getLogger("edgewire")
_learned = dict[tuple[str, str | None], Data]()  # the last table whose columns were learned, if any


def table(
    root: str | None = None,
    target: str | Sequence[str] | None = "target",
    inputs: str | Sequence[str] | None = None,
    group: str | None = None,
    classes: Sequence[str] | None = None,
    columns: str | None = None,
    kinds: Mapping[str, str] | list[str] | None = None,
    skip: Sequence[str] | None = None,
    drop_missing: bool = False,
    delimiter: str | None = None,
    decimal: str | None = None,
    missing: Sequence[str] | None = None,
    header: bool | None = None,
    test_share: float = 0.2,
    on_device: bool = False,
) -> Data:
    """Return a table of any columns: numbers, texts, dates, and lists of numbers as windows.

    Inputs are raw rows, as `TableTransform` takes them, and the transform is one. A target of text,
    of true and false, or of two whole numbers is a class, int64 (N,), and 01067 is text. A number
    is float32 (N,), and several are float32 (N, k).

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
            date, such as %d/%m/%Y; or a list of `NAME: KIND`.
        skip: columns to leave out.
        drop_missing: whether rows without a target are left out.
        delimiter, decimal, missing, header: how files of text are read, see `Reading`.
        test_share: the share of the rows that are the test split if there are no files for it.
        on_device: whether the table is a device's own: all rows are for training, by `columns`.

    Raises:
        Problems: columns that cannot be taken; all of them, with what mends them.
        TaskError: no such files or columns, a file that cannot be read, or no pyarrow.
    """
    given, wishes = wished(**locals())
    known = None if columns is None else Columns.from_json(columns)
    if on_device and known is None:
        raise MissingOption(
            "a device's own table needs the columns that all devices use: dataset.columns=FILE, or "
            "a table at the server, dataset.root=FILE"
        )
    files = files_of(root, ANY)
    stats = [(each.resolve(), each.stat().st_mtime_ns) for part in files for each in part]
    key = repr((stats, {**given, "columns": None}))
    if (key, columns) in _learned:
        return _learned[key, columns]
    rows, cut = _read(files, wishes, drop_missing, on_device, known)
    wishes = replace(wishes, reading=replace(wishes.reading, usual=rows.reading.decimal))
    found = known or learn(rows, wishes, cut, test_share)
    data = _data(rows, found, cut, test_share, on_device, root)
    if known is None:
        _hint_at_classes(rows.place, data, wishes)
        _learned.clear()
        _learned[key, found.to_json()] = data
    return data


def _hint_at_classes(place: str, data: Data, wishes: Wishes) -> None:
    """Log how to get classes if the only target is a number with few values, all whole."""
    target = data.columns.target if data.columns else ()
    for each in target if len(target) == 1 and target[0].kind == "number" else ():
        values = torch.unique(only(data.train.targets))
        if 1 < len(values) <= MOST_LIKE_CLASSES and not (values % 1).any():
            cure = overrides_of([(each.name, Problem("", key="kinds", value="category"))], wishes)
            log.warning(
                "%s: the target %s has %d different values, and is predicted as a number; for "
                "classes add %s",
                *(place, each.name, len(values), shlex.quote(*cure)),
            )


def surveyed(index: int, count: int, **options: Any) -> Survey:
    """Return what a node tells of its rows of a table whose columns are not known yet.

    `options`: those of `table`. A device, with `on_device`, has all rows. Otherwise the node has a
    share of them: every one of `count`, from row `index` on. Raises `MissingOption` for few rows.
    """
    given, wishes = wished(**options)
    rows, _ = _read((files_of(given["root"], ANY)[0], []), wishes, given["drop_missing"])
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
    more = given["missing"]
    missing = None if more is None else (*(MISSING if more else ("",)), *_names(more))
    reading = Reading(given["delimiter"], given["decimal"], missing, given["header"])
    return given, _wishes(given, reading)


def _wishes(given: Mapping[str, Any], reading: Reading, **more: Any) -> Wishes:
    """Return the wishes of a loader's options; `more`: other fields."""
    inputs, classes, kinds = given["inputs"], given["classes"], given.get("kinds") or {}
    if isinstance(kinds, list):
        kinds = dict(each.rpartition(":")[::2] for each in map(str, kinds))
    return Wishes(
        target=_names(given["target"]),
        inputs=None if inputs is None else _names(inputs),
        group=next(iter(_names(given["group"])), None),
        kinds={tidy(name): str(kind).strip() for name, kind in kinds.items()},
        skip=_names(given.get("skip")),
        classes=None if classes is None else tuple(map(str, classes)),
        reading=reading,
        **more,
    )


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return tuple(map(tidy, (names,) if isinstance(names, str) else names or ()))


def _read(
    files: tuple[list[Path], list[Path]],
    wishes: Wishes,
    drop_missing: bool = False,
    on_device: bool = False,
    known: Columns | None = None,
) -> tuple[Rows, int | None]:
    """Return the rows of files to train and to test on, and where the latter begin, if any do."""
    train, test = files[0], [] if on_device else files[1]
    texts = [name for name, kind in wishes.kinds.items() if kind == "category" or "%" in kind]
    every = [*train, *test]
    rows = rows_of(every, known) if known else read(every, wishes.reading, texts)
    if drop_missing:
        keep = np.ones(rows.table.num_rows, bool)
        for place in (rows.names.index(name) for name in {*wishes.target} & {*rows.names}):
            keep &= encoded(rows, rows.table.column(place))[0] >= 0
        if not keep.any():
            raise TaskError(f"{rows.place}: no row has a value of {', '.join(wishes.target)}")
        starts = tuple((name, int(keep[:first].sum())) for name, first in rows.starts)
        rows = replace(rows, table=rows.table.filter(keep), starts=starts)
    return rows, rows.starts[len(train)][1] if test else None


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
    if targets is None:
        expect_there(rows.place, rows.names, [each.name for each in columns.target], "target")
    groups, names = (None, ()) if columns.group is None else _groups(rows, columns.group)
    whole = Split(inputs, () if targets is None else targets, groups)
    data = data_of(
        [whole] if cut is None else [whole.rows(0, cut), whole.rows(cut, len(whole))],
        test_share,
        on_device,
        root,
        transform=TableTransform([plain_of(each) for each in columns.features]),
        class_names=columns.classes,
        group_names=names,
    )
    return replace(data, columns=columns)


def without_rows(text: str) -> Data:
    """Return the data of a server whose nodes have all of a table; `text`: the columns as JSON."""
    columns = Columns.from_json(text)
    shape = (0, len(columns.target))[: max(len(columns.target), 1)]
    kind = torch.int64 if columns.classes else torch.float32
    targets = torch.empty(shape, dtype=kind) if columns.target else ()
    split = Split(random_rows(columns, 0), targets)
    transform = TableTransform([plain_of(each) for each in columns.features])
    return Data(split, split, transform, len(columns.classes), columns.classes, columns=columns)


def _groups(rows: Rows, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the number of each row's group, int64 (N,), and the names of the groups."""
    column = rows.table.column(located(rows, [name], "group")[name])
    try:
        places, texts = encoded(rows, column)
        if (places < 0).any():
            raise OddCells(f"no value in {rows.row(int((places < 0).argmax()))}")
    except OddCells as odd:
        raise TaskError(f"{rows.place}: the column {name} for dataset.group= has {odd}") from odd
    named = np.array(texts.to_pylist())
    whole = all(each.lstrip("+-").isdecimal() and len(each) < 19 for each in named)
    (ranks,), names = group_ids(named.astype(np.int64) if whole else named)
    return ranks[places], names


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
    """Return a table of numbers in CSV or Parquet files, with columns by name.

    All inputs are numbers without gaps, standardised with `standardize` by `mean` and `std`, None
    for those of the training rows. `index`: whether the index of pandas is an input if `inputs` is
    None. See `table` for the other arguments.

    Raises:
        MissingOption: a device's table without what all devices must share.
        TaskError: as `table`; or a mean and a deviation for other inputs.
    """
    if on_device and (inputs is None or (standardize and mean is None)):
        raise MissingOption(
            "a device's own table needs what all devices share: dataset.inputs=[temperature,...], "
            "and dataset.mean=[...] and dataset.std=[...] or dataset.standardize=false"
        )
    reading = Reading(delimiter, ".", ("",), header=True)  # NA may be a class
    wishes = _wishes(locals(), reading, index=index, plain=True, on_device=on_device)
    files = files_of(root, PLAIN)
    rows, cut = _read(files, wishes, on_device=on_device)
    found = learn(rows, wishes, cut, test_share)
    features = found.features
    if inputs is None:
        named = listed([each.name for each in features])
        out = "".join(f"; {name!r} ({why}) is left out" for name, why in found.left)
        log.warning("%s: the inputs are %s%s", rows.place, named, out)
    if not standardize and mean is None:
        mean, std = (0.0,) * len(features), (1.0,) * len(features)
    if mean is not None or std is not None:
        given = Standardize(tuple(mean or ()), tuple(std or ()))  # checks the numbers
        if len(given.mean) != len(features):
            raise TaskError(
                f"dataset.mean has {len(given.mean)} numbers for {len(features)} inputs"
            )
        pairs = zip(features, given.mean, given.std, strict=True)
        features = tuple(replace(each, mean=float(m), std=float(s)) for each, m, s in pairs)
    return _data(rows, replace(found, features=features), cut, test_share, on_device, root)


parquet = csv  # a file itself says what it is
