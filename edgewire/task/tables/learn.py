"""Learns a table's columns: their kinds, and the statistics of the training rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task.datasets.files import class_names
from edgewire.task.errors import TaskError
from edgewire.task.tables import cells
from edgewire.task.tables.cells import OddCells
from edgewire.task.tables.columns import KINDS, Column, Columns, Reading
from edgewire.task.tables.files import Rows, tidy
from edgewire.task.tables.read import lacking, targets_of, values_of

MOST_TEXTS = 40  # of a category; all further ones count as one
FEW_ROWS = 20  # with fewer, nothing is taken for a row number or for free text
MOST_SHOWN = 20  # problems that an error lists
# Names that pandas gives to the column of an index without a name, in CSV and Parquet files.
INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)*")
ID = re.compile(r"(?i:(.*[\W_])?id)|.*[a-z]I[dD]")
DATES = [day + clock for day in ("%d/%m/%Y", "%m/%d/%Y") for clock in ("", " %H:%M", " %H:%M:%S")]


@dataclass(frozen=True)
class Wishes:
    """What the user said of a table; its fields are options of the loaders in `datasets.table`.

    `plain`: whether all inputs are numbers without gaps, as `dataset=csv` has them. Only an index
    is left out then, and whole numbers as a target stay whole. `on_device`: whether the rows are a
    device's own, so that `classes` must be given.
    """

    target: tuple[str, ...] = ()
    inputs: tuple[str, ...] | None = None
    group: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    reading: Reading = field(default_factory=Reading)
    index: bool = False
    plain: bool = False
    on_device: bool = False


class Left(Exception):
    """A column is no input; the message is the reason."""


class Problem(Exception):
    """A column cannot be taken. `found`: why; `cure`: what to do.

    `key`: the option that mends it, skip, kinds or drop_missing, if there is one; `kind`: its value
    for `kinds`.
    """

    def __init__(self, found: str, cure: str, key: str = "", kind: str = "") -> None:
        super().__init__(found)
        self.found, self.cure, self.key, self.kind = found, cure, key, kind


class Problems(TaskError):
    """All columns that cannot be taken. `screen`: the error as a table, for a terminal."""

    def __init__(self, place: str, problems: list[tuple[str, Problem]], wishes: Wishes) -> None:
        one = "1 column cannot be taken as it is"
        several = f"{len(problems):,} columns cannot be taken as they are"
        head = f"{place}: {one if len(problems) == 1 else several}"
        more = len(problems) - MOST_SHOWN
        shown = [
            (name[:30], each.found, each.cure)
            for name, each in problems[:MOST_SHOWN]
        ]
        wide, wider = (max(len(row[place]) for row in shown) for place in range(2))
        rows = [f"  {name:<{wide}}  {found:<{wider}}  {cure}" for name, found, cure in shown]
        words = " ".join(map(shlex.quote, _overrides(problems, wishes)))
        ends = [f"and {more:,} more"] * (more > 0) + [f"then add: {words}"] * bool(words)
        said = [f"{name}: {found} ({cure})" for name, found, cure in shown]
        super().__init__("; ".join([f"{head}: {said[0]}", *said[1:], *ends]))
        self.screen = "\n".join([head, *rows, *ends])


def _overrides(problems: list[tuple[str, Problem]], wishes: Wishes) -> list[str]:
    """Return the overrides that mend all problems that an option can mend."""
    found = list[str]()
    keys = [each.key for _, each in problems]
    if "skip" in keys:
        names = (*wishes.skip, *(name for name, each in problems if each.key == "skip"))
        found.append(f"dataset.skip=[{','.join(map(_word, dict.fromkeys(names)))}]")
    if "kinds" in keys:
        kinds = {name: each.kind for name, each in problems if each.key == "kinds"}
        pairs = {**wishes.kinds, **kinds}.items()
        found.append(f"dataset.kinds={{{','.join(f'{_key(k)}:{_word(v)}' for k, v in pairs)}}}")
    if "drop_missing" in keys:
        found.append("dataset.drop_missing=true")
    return found


def _word(text: str) -> str:
    """Return a text as an element of a list in an override, in quotes if Hydra needs them."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text) and text.lower() not in (
        "true",
        "false",
        "null",
    ):
        return text
    return "'" + re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), text) + "'"


def _key(text: str) -> str:
    """Return a text as a key of a mapping in an override, where Hydra knows no quotes."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", text)


def learn(
    rows: Rows, wishes: Wishes, training: Callable[[Tensor | None], NDArray[np.int64]]
) -> Columns:
    """Return the columns of a table.

    Args:
        rows: all rows; the kinds and the classes come from all.
        wishes: what the user said.
        training: gives the places of the training rows, from whose values the statistics come, for
            the classes of all rows, int64 (N,), None without classes.

    Raises:
        Problems: columns that cannot be taken, all of them.
        TaskError: names of absent columns, unknown classes, or fewer than two.
    """
    _expect_known(rows, wishes)
    learner = _Learner(rows, wishes)
    problems = list[tuple[str, Problem]]()
    left = [(name, f"not in {file}") for name, file in rows.partial.items()]

    def learned(learn_one: Callable[[str], Column], name: str) -> list[Column]:
        try:
            return [learn_one(name)]
        except Problem as problem:
            problems.append((name, problem))
        except Left as reason:
            left.append((name, str(reason)))
        return []

    target = tuple(each for name in wishes.target for each in learned(learner.target, name))
    classes = not problems and target and target[0].kind == "category"
    learner.train = training(targets_of(rows, Columns((), target)) if classes else None)
    if not problems:
        target = tuple(each if each.values else learner.scaled(each) for each in target)
    names = dict.fromkeys(rows.names) if wishes.inputs is None else wishes.inputs
    used = {*wishes.target, wishes.group}
    features = [
        each for name in names if name not in used for each in learned(learner.feature, name)
    ]
    lengths = {each.length: each.name for each in features if each.kind == "window"}
    if len(lengths) > 1:
        first, *_, last = lengths
        found = f"lists of {last} values, others have {first}"
        problems.append((lengths[last], Problem(found, "give all lists one length", "skip")))
    if problems:
        raise Problems(rows.place, problems, wishes)
    if not features:
        why = ", ".join(f"{name} ({reason})" for name, reason in left[:MOST_SHOWN])
        raise TaskError(
            f"{rows.place}: dataset.inputs= must name at least one column: all are left out"
            + (f", {why}" if why else "")
        )
    return Columns(tuple(features), target, wishes.group, wishes.reading, tuple(left))


def _expect_known(rows: Rows, wishes: Wishes) -> None:
    """Raise `TaskError` for options that name absent columns, or no kind."""
    inputs, group = wishes.inputs or (), () if wishes.group is None else (wishes.group,)
    given = {"target": wishes.target, "inputs": inputs, "group": group}
    there = {*rows.names}
    for key, names in {**given, "kinds": wishes.kinds, "skip": wishes.skip}.items():
        if absent := [name for name in names if name not in there]:
            raise TaskError(f"{rows.place} has {lacking(rows, absent, key)}")
    twice = len({*inputs}) < len(inputs) or {*wishes.target, wishes.group} & {*inputs}
    if wishes.inputs is not None and (not inputs or twice):
        raise TaskError(
            f"{rows.place}: dataset.inputs= must name at least one column, each once, and not the "
            f"target or the group"
        )
    for name, kind in wishes.kinds.items():
        if kind not in KINDS and "%" not in kind:
            near = get_close_matches(kind, KINDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"give {', '.join(KINDS)}"
            raise TaskError(f"dataset.kinds: {name} is {kind!r}; {hint}")


class _Learner:
    """Learns columns one by one. `train`: the places of the training rows, once they are known."""

    def __init__(self, rows: Rows, wishes: Wishes) -> None:
        self.rows, self.wishes = rows, wishes
        self.train = np.arange(rows.table.num_rows)
        self._missing = rows.reading.missing or ()
        self._places = dict[str, list[int]]()
        for place, name in enumerate(rows.names):
            self._places.setdefault(name, []).append(place)

    def _cells(self, name: str) -> Any:
        places = self._places[name]
        if len(places) > 1:
            key = "" if self.wishes.plain or name in self.wishes.target else "skip"
            raise Problem(f"{len(places)} columns have this name", "rename all but one", key)
        return self.rows.table.column(places[0])

    def target(self, name: str) -> Column:
        """Return the column of a target, without statistics. Raises `Problem`."""
        found, wishes = self._cells(name), self.wishes
        several, plain = len(wishes.target) > 1, wishes.plain
        other = "the target: name another as dataset.target="
        try:
            places, texts = cells.encoded(found, self._missing)
            number = several or self._kind(name, found).kind == "number"
            asked = wishes.kinds.get(name, "category" if wishes.classes and not several else None)
            if asked is None and not several and not cells.is_text(found.type):
                two = len(texts) == 2 and cells.share(texts, places, r"^-?\d+$") == 1
                asked = "category" if str(found.type) == "bool" or (two and not plain) else None
            if number and asked is None and (several or self._numeric(found) == 1):
                cells.numbers(self.rows, found)
            elif asked not in (None, "category", "number"):
                raise OddCells(f"the kind {asked}, and a number or a category is taken")
        except OddCells as odd:
            raise Problem(str(odd), other) from odd
        filled = int((places >= 0).sum())
        if filled < len(places):
            found_none = f"{len(places) - filled:,} of {len(places):,} rows without a value"
            key = "drop_missing" if filled and not plain else ""
            cure = "the target: dataset.drop_missing=true leaves them out" if key else other
            raise Problem(found_none, cure, key)
        whole = plain and str(found.type).startswith(("int", "uint"))
        if asked == "number" or (asked is None and number and self._numeric(found) == 1):
            return Column(name, "integer" if whole and not several else "number")
        if len(texts) > max(filled / 2, FEW_ROWS / 2) and wishes.classes is None and not plain:
            raise Problem(f"{len(texts):,} different texts in {filled:,} rows", other)
        names = class_names(texts.to_pylist(), wishes.classes, wishes.on_device)
        return Column(name, "category", values=names)

    def feature(self, name: str) -> Column:
        """Return the column of an input. Raises `Problem` or `Left`."""
        wishes = self.wishes
        asked = wishes.kinds.get(name)
        named = wishes.inputs is not None or asked is not None or wishes.plain
        if name in wishes.skip:
            raise Left("dataset.skip")
        if INDEX.fullmatch(name) and not wishes.index and wishes.inputs is None and not asked:
            raise Left("pandas' index" if name else "without a name")
        found = self._cells(name)
        column = Column(name)
        try:
            column = column if wishes.plain else self._kind(name, found)
            if column.kind == "window":
                window = cells.windows(self.rows, found)
                flat = window[self.train].ravel().astype(np.float64)
                return self.scaled(replace(column, length=window.shape[1]), flat)
            if column.kind == "category":
                return self._category(column, found, named)
            values = values_of(self.rows, found, column)
        except OddCells as odd:
            raise self._problem(name, found, column.kind, odd) from odd
        if column.kind == "date" and (values[~np.isnan(values)] % 1).any():
            column = replace(column, kind="time")
        used = values[self.train]
        column = self.scaled(column, used)
        if wishes.plain and (gaps := np.isnan(values)).any():
            first, count = self.rows.row(int(gaps.argmax())), int(gaps.sum())
            said = f"no value in {count:,} of {len(values):,} rows, first in {first}"
            raise Problem(said, "fill them, name other dataset.inputs=, or take dataset=table")
        if not named and np.isnan(used).all():
            raise Left("empty")
        if not named and not column.missing and used.min() == used.max():
            raise Left("constant")
        if not named and self._numbers_rows(name, found, values):
            cure = f"a row number? leave it out, or dataset.kinds={{{name}: number}}"
            raise Problem(f"{len(values):,} different whole numbers", cure, "skip")
        return column

    def _problem(self, name: str, found: Any, kind: str, odd: OddCells) -> Problem:
        if self.wishes.plain:
            return Problem(str(odd), "no number: name other dataset.inputs=, or take dataset=table")
        if kind == "number" and cells.is_text(found.type) and name not in self.wishes.kinds:
            cure = f"no number: fix them, or dataset.kinds={{{name}: category}}"
            return Problem(str(odd), cure, "kinds", "category")
        return Problem(str(odd), f"no {kind}: fix them, or leave it out", "skip")

    def _numeric(self, found: Any) -> float:
        """Return the share of the cells with a value that are numbers; 1 for other than text."""
        if not cells.is_text(found.type):
            return 1.0
        places, texts = cells.encoded(found, self._missing)
        return cells.share(cells.plain_numbers(self.rows, texts), places)

    def _kind(self, name: str, found: Any) -> Column:
        """Return a column with its kind: what the user said, or what most cells are."""
        from pyarrow import compute, types

        asked = self.wishes.kinds.get(name)
        if asked is not None:
            kind, form = ("date", (asked,)) if "%" in asked else (asked, ())
            return Column(name, "date" if kind == "time" else kind, values=form)
        if cells.is_window(found.type):
            return Column(name, "window")
        if types.is_date(found.type) or types.is_timestamp(found.type):
            return Column(name, "date")
        if self._numeric(found) >= 0.5:  # others are shown as no numbers
            return Column(name)
        places, texts = cells.encoded(found, self._missing)
        filled = int((places >= 0).sum())
        forms = [
            form
            for form in DATES
            if not compute.strptime(texts, form, "s", error_is_null=True).null_count
        ]
        if len(forms) == 1:
            return Column(name, "date", values=(forms[0],))
        if forms and len(texts):
            cure = f"day or month first? this is {forms[0]}"
            raise Problem(f'dates such as "{tidy(texts[0])}"', cure, "kinds", forms[0])
        free = filled >= FEW_ROWS and len(texts) > filled / 2
        if free and self.wishes.inputs is None and name not in self.wishes.target:
            said = f"{len(texts):,} different texts in {filled:,} rows"
            cure = f"free text: leave it out, or dataset.kinds={{{name}: category}}"
            raise Problem(said, cure, "skip")
        return Column(name, "category")

    def _category(self, column: Column, found: Any, named: bool) -> Column:
        places, texts = cells.encoded(found, self._missing)
        used = places[self.train]
        counts = np.bincount(used[used >= 0], minlength=len(texts))
        seen = np.flatnonzero(counts)
        ranked = sorted(zip((-counts[seen]).tolist(), texts.take(seen).to_pylist(), strict=True))
        missing = float((used < 0).sum() / max(len(used), 1))
        if not named and len(ranked) < 2 and (not ranked or not missing):
            raise Left("constant" if ranked else "empty")
        other = len(ranked) > MOST_TEXTS + 1  # a single further text needs no other place
        kept = ranked[: MOST_TEXTS if other else MOST_TEXTS + 1]
        values = tuple(text for _, text in kept)
        return replace(column, missing=missing, other=other, values=values)

    def scaled(self, column: Column, used: cells.Floats | None = None) -> Column:
        """Return a column with the mean, deviation and share of missing values of training rows.

        `used`: their values; None: those of the column's cells.
        """
        if used is None:
            used = cells.numbers(self.rows, self._cells(column.name))[self.train]
        good = used[~np.isnan(used)]
        if not len(good):
            return replace(column, missing=float(len(used) > 0))
        largest = np.abs(good).max() or 1.0
        part = good / largest  # squares of large numbers overflow
        mean, std = float(part.mean() * largest), float(part.std() * largest)
        if good.min() == good.max():  # the mean may be rounded, and the deviation is not 0 then
            mean, std = float(good[0]), 1.0
        return replace(column, mean=mean, std=std or 1.0, missing=1 - len(good) / len(used))

    def _numbers_rows(self, name: str, found: Any, values: cells.Floats) -> bool:
        """Return whether a column seems to number the rows."""
        count = len(values)
        integer = str(found.type).startswith(("int", "uint"))
        if not integer or count < FEW_ROWS or np.isnan(values).any():
            return False
        low, high = values.min(), values.max()
        if high - low < 1.25 * count:
            return int(np.bincount((values - low).astype(np.int64)).max()) == 1
        return ID.fullmatch(name) is not None and len(np.unique(values)) == count
