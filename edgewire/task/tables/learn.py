"""Learns a table's columns: their kinds, and the statistics of the training rows."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task.datasets.files import class_names
from edgewire.task.errors import TaskError
from edgewire.task.tables import cells
from edgewire.task.tables.cells import OddCells
from edgewire.task.tables.columns import KINDS, Column, Columns, Reading
from edgewire.task.tables.files import NUMBER, Rows
from edgewire.task.tables.read import lacking, targets_of

MOST_TEXTS = 40  # of a category; all further ones count as one
FEW_ROWS = 20  # with fewer, nothing is taken for a row number or for free text
MOST_SHOWN = 20  # problems that an error lists
# Names that pandas gives to the column of an index without a name, in CSV and Parquet files.
INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)*")
ID = re.compile(r"(?i:(.*[\W_])?id)|.*[a-z]I[dD]")
DATES = ("%d/%m/%Y", "%m/%d/%Y")  # a column's texts tell which one it is, or the user does
CLOCKS = ("", " %H:%M", " %H:%M:%S")


@dataclass(frozen=True)
class Wishes:
    """What the user said of a table; its fields are options of `datasets.table.table`."""

    target: tuple[str, ...] = ()
    inputs: tuple[str, ...] | None = None
    group: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    reading: Reading = field(default_factory=Reading)


class Problem(NamedTuple):
    """A column that cannot be taken: what was found, and what mends it.

    `key`: the option that mends it, skip, kinds or drop_missing, if there is one; `kind`: its value
    for `kinds`.
    """

    name: str
    found: str
    cure: str
    key: str = ""
    kind: str = ""


class Problems(TaskError):
    """All columns that cannot be taken. `screen`: the error as a table, for a terminal."""

    def __init__(self, place: str, problems: list[Problem], wishes: Wishes) -> None:
        several = "1 column" if len(problems) == 1 else f"{len(problems):,} columns"
        head = f"{place}: {several} cannot be taken as they are"
        shown, more = problems[:MOST_SHOWN], len(problems) - MOST_SHOWN
        rest = [f"and {more:,} more"] if more > 0 else []
        names = [" ".join(each.name.split())[:30] for each in shown]
        wide = [max(map(len, column)) for column in (names, [each.found for each in shown])]
        rows = [
            f"  {name:<{wide[0]}}  {each.found:<{wide[1]}}  {each.cure}".rstrip()
            for name, each in zip(names, shown, strict=True)
        ]
        words = _overrides(problems, wishes)
        mended = [f"then add: {' '.join(map(shlex.quote, words))}"] if words else []
        parts = [
            f"{name}: {each.found} ({each.cure})" for name, each in zip(names, shown, strict=True)
        ]
        super().__init__("; ".join([f"{head}: {parts[0]}", *parts[1:], *rest, *mended]))
        self.screen = "\n".join([head, *rows, *(f"  {each}" for each in rest), *mended])
        self.problems = tuple(problems)


def _overrides(problems: Iterable[Problem], wishes: Wishes) -> list[str]:
    """Return the overrides that mend all problems that an option can mend."""
    found = list[str]()
    skip = [each.name for each in problems if each.key == "skip"]
    kinds = {each.name: each.kind for each in problems if each.key == "kinds"}
    if skip:
        found.append(f"dataset.skip=[{','.join(map(word, dict.fromkeys((*wishes.skip, *skip))))}]")
    if kinds:
        pairs = {**wishes.kinds, **kinds}.items()
        found.append(f"dataset.kinds={{{','.join(f'{_key(k)}:{word(v)}' for k, v in pairs)}}}")
    if any(each.key == "drop_missing" for each in problems):
        found.append("dataset.drop_missing=true")
    return found


def word(text: str) -> str:
    """Return a text as an element of a list in an override, in quotes if Hydra needs them."""
    if re.fullmatch(r"[A-Za-z_][\w.-]*", text) and text.lower() not in ("true", "false", "null"):
        return text
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


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
        TaskError: names of absent columns, or fewer than two classes.
    """
    _expect_known(rows, wishes)
    problems = list[Problem]()
    counts = Counter(rows.names)
    target = tuple(
        column
        for name in wishes.target
        if (column := _target(rows, name, wishes, problems)) is not None
    )
    labels = None
    if target and target[0].kind == "category" and not problems:
        labels = targets_of(rows, Columns((), target))
    learner = _Learner(rows, wishes, training(labels))
    if not problems:
        target = tuple(each if each.values else learner.target(each.name) for each in target)
    features = list[Column]()
    left = [(name, f"not in {file}") for name, file in rows.partial.items()]
    given = {*wishes.target, wishes.group}
    places = {name: place for place, name in enumerate(rows.names)}
    names = wishes.inputs if wishes.inputs is not None else places
    for name in names:
        if name in given:
            continue
        if name in wishes.skip:
            left.append((name, "dataset.skip"))
        elif counts[name] > 1:
            said = f"{counts[name]} columns have this name"
            problems.append(Problem(name, said, "rename all but one, or leave them out", "skip"))
        else:
            found = learner.column(name, places[name])
            if isinstance(found, Problem):
                problems.append(found)
            elif isinstance(found, Column):
                features.append(found)
            else:
                left.append((name, found))
    lengths = {each.length: each.name for each in features if each.kind == "window"}
    if len(lengths) > 1:
        (first, _), (second, name) = [*lengths.items()][:2]
        said = f"lists of {second} values, others have {first}"
        problems.append(Problem(name, said, "give all lists one length", "skip"))
    if problems:
        raise Problems(rows.place, problems, wishes)
    if not features:
        raise TaskError(
            f"{rows.place}: no column is left as an input: "
            f"{', '.join(f'{name} ({why})' for name, why in left[:MOST_SHOWN]) or 'give more'}; "
            f"dataset.inputs=[...] names columns to take"
        )
    return Columns(tuple(features), target, wishes.group, wishes.reading, tuple(left))


def _expect_known(rows: Rows, wishes: Wishes) -> None:
    """Raise `TaskError` for options that name absent columns, or no kind."""
    given = {
        "target": wishes.target,
        "inputs": wishes.inputs or (),
        "group": () if wishes.group is None else (wishes.group,),
        "kinds": tuple(wishes.kinds),
        "skip": wishes.skip,
    }
    there = {*rows.names}
    for key, names in given.items():
        if absent := [name for name in names if name not in there]:
            raise TaskError(f"{rows.place} has {lacking(rows, absent, key)}")
    if wishes.inputs is not None:
        named = {*wishes.target, wishes.group} & {*wishes.inputs}
        if not wishes.inputs or named or len({*wishes.inputs}) < len(wishes.inputs):
            raise TaskError(
                f"{rows.place}: dataset.inputs= must name at least one column, each once, and not "
                f"the target or the group"
            )
    for name, kind in wishes.kinds.items():
        if kind not in KINDS and "%" not in kind:
            near = get_close_matches(kind, KINDS, n=1)
            raise TaskError(
                f"dataset.kinds: {name} is {kind!r}; "
                + (f"did you mean {near[0]}? " if near else "")
                + f"give {', '.join(KINDS)}, or a date's format such as '%d/%m/%Y'"
            )


def _target(rows: Rows, name: str, wishes: Wishes, problems: list[Problem]) -> Column | None:
    """Return the column of a target, without statistics; None after a problem was added."""
    found = rows.table.column(rows.names.index(name))
    other = "name another dataset.target="
    if rows.names.count(name) > 1:
        problems.append(Problem(name, "several columns have this name", "the target: rename one"))
        return None
    try:
        places, texts = cells.encoded(found, rows.reading.missing or ())
    except OddCells as odd:
        problems.append(Problem(name, str(odd), f"the target: {other}"))
        return None
    if missing := int((places < 0).sum()):
        said = f"{missing:,} row{'s' * (missing > 1)} without a value"
        cure = "the target: dataset.drop_missing=true leaves them out"
        if missing == len(places):
            problems.append(Problem(name, "no row has a value", f"the target: {other}"))
            return None
        problems.append(Problem(name, said, cure, "drop_missing"))
    asked = wishes.kinds.get(name)
    if wishes.classes is not None and asked is None:
        asked = "category"
    if asked is None and not cells.is_text(found.type):
        bools = str(found.type) == "bool"
        few = len(texts) == 2 and all(re.fullmatch(r"-?\d+", each) for each in texts.to_pylist())
        asked = "category" if (bools or few) and len(wishes.target) == 1 else "number"
    if asked == "number" or (asked is None and len(wishes.target) > 1):
        try:
            cells.numbers(rows, found)
        except OddCells as odd:
            cure = f"the target, no number: fix them, or {other}"
            problems.append(Problem(name, str(odd), cure))
            return None
        return Column(name)
    if asked not in (None, "category") or len(wishes.target) > 1:
        problems.append(Problem(name, f"kind {asked}", "a target is a number or a category"))
        return None
    rows_with = len(places) - missing
    if len(texts) > rows_with / 2 and rows_with >= FEW_ROWS and wishes.classes is None:
        wrong = _no_number(rows, found, places, texts)
        said = f"{len(texts):,} different texts in {rows_with:,} rows"
        cure = f"the target: {'no number' if wrong else 'free text'}: {other}"
        problems.append(Problem(name, wrong or said, cure))
        return None
    return Column(name, "category", values=class_names(texts.to_pylist(), wishes.classes, False))


def _no_number(rows: Rows, found: Any, places: NDArray[np.int64], texts: Any) -> str:
    """Return what is no number in a column of text of which half is; "" for other columns."""
    from pyarrow import compute

    if rows.reading.decimal == ",":
        texts = compute.replace_substring(texts, ",", ".")
    good = np.append(compute.match_substring_regex(texts, NUMBER).to_numpy(False), False)[places]
    if 2 * good.sum() < (places >= 0).sum():
        return ""
    try:
        cells.numbers(rows, found)
    except OddCells as odd:
        return str(odd)
    return ""


class _Learner:
    """Learns columns one by one. `train`: the places of the training rows."""

    def __init__(self, rows: Rows, wishes: Wishes, train: NDArray[np.int64]) -> None:
        self.rows, self.wishes, self.train = rows, wishes, train

    def target(self, name: str) -> Column:
        """Return a target of numbers with its statistics."""
        found = self.rows.table.column(self.rows.names.index(name))
        return self._scaled(Column(name), cells.numbers(self.rows, found))

    def column(self, name: str, place: int) -> Column | Problem | str:
        """Return a column, a problem, or the reason why it is left out."""
        found = self.rows.table.column(place)
        asked = self.wishes.kinds.get(name)
        named = self.wishes.inputs is not None or asked is not None
        if not named and INDEX.fullmatch(name):
            return "pandas' index" if name else "no name"
        if found.null_count == len(found) and not named:
            return "empty"
        try:
            column = self._asked(name, asked) if asked else self._guessed(name, found, named)
            if isinstance(column, Problem):
                return column
            if column.kind == "window":
                return self._window(column, found)
            if column.kind == "category":
                return self._category(column, found, named)
            values = (
                cells.numbers(self.rows, found)
                if column.kind == "number"
                else cells.days(self.rows, found, next(iter(column.values), None))
            )
        except OddCells as odd:
            kind = asked or "number"
            if kind == "number":
                cure = f"no number: fix them, or dataset.kinds={{{name}: category}}"
                return Problem(name, str(odd), cure, "kinds", "category")
            return Problem(name, str(odd), f"no {kind}: fix them, or leave it out", "skip")
        if column.kind == "date" and (values[~np.isnan(values)] % 1).any():
            column = replace(column, kind="time")
        if np.isnan(values[self.train]).all() and not named:
            return "empty"
        column = self._scaled(column, values)
        used = values[self.train]
        if not named and not column.missing and len(used) and used.min() == used.max():
            return "constant"
        if not named and self._numbers_rows(name, found, values):
            return Problem(
                name,
                f"{len(values):,} different whole numbers",
                f"a row number? leave it out, or dataset.kinds={{{name}: number}}",
                "skip",
            )
        return column

    def _asked(self, name: str, kind: str) -> Column:
        if "%" in kind:
            return Column(name, "date", values=(kind,))
        return Column(name, "date" if kind == "time" else kind)

    def _guessed(self, name: str, found: Any, named: bool) -> Column | Problem:
        from pyarrow import compute, types

        kind = found.type
        if cells.is_window(kind):
            return Column(name, "window")
        if types.is_date(kind) or types.is_timestamp(kind):
            return Column(name, "date")
        if not cells.is_text(kind):
            if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
                text = "text that is not UTF-8" if types.is_binary(kind) else f"cells of {kind}"
                cure = "dataset.encoding=cp1252 reads Windows' text" if "UTF" in text else ""
                return Problem(name, text[:60], cure or "leave it out", "" if cure else "skip")
            return Column(name)
        places, texts = cells.encoded(found, self.rows.reading.missing or ())
        if odd := _no_number(self.rows, found, places, texts):
            raise OddCells(odd)
        if compute.all(compute.match_substring_regex(texts, NUMBER)).as_py():
            return Column(name)
        forms = [
            form + clock
            for form in DATES
            for clock in CLOCKS
            if not compute.strptime(texts, form + clock, "s", error_is_null=True).null_count
        ]
        if len(forms) == 1:
            return Column(name, "date", values=(forms[0],))
        if forms:
            said = f'dates such as "{texts[0].as_py()}"'
            cure = f"day or month first? this is {forms[0]}"
            return Problem(name, said, cure, "kinds", forms[0])
        filled = int((places >= 0).sum())
        if filled >= FEW_ROWS and len(texts) > filled / 2 and not named:
            said = f"{len(texts):,} different texts in {filled:,} rows"
            cure = f"free text: leave it out, or dataset.kinds={{{name}: category}}"
            return Problem(name, said, cure, "skip")
        return Column(name, "category")

    def _category(self, column: Column, found: Any, named: bool) -> Column | str:
        places, texts = cells.encoded(found, self.rows.reading.missing or ())
        used = places[self.train]
        counts = np.bincount(used[used >= 0], minlength=len(texts))
        seen = np.flatnonzero(counts)
        ranked = sorted(zip((-counts[seen]).tolist(), texts.take(seen).to_pylist(), strict=True))
        missing = float((used < 0).mean()) if len(used) else 0.0
        if not named and not ranked:
            return "empty"
        if not named and len(ranked) == 1 and not missing:
            return "constant"
        other = len(ranked) > MOST_TEXTS + 1  # a single further text needs no other place
        kept = ranked[: MOST_TEXTS if other else MOST_TEXTS + 1]
        return replace(column, missing=missing, other=other, values=tuple(text for _, text in kept))

    def _window(self, column: Column, found: Any) -> Column | Problem:
        try:
            values = cells.windows(self.rows, found)
        except OddCells as odd:
            return Problem(column.name, str(odd), "give all lists one length of numbers", "skip")
        return replace(
            self._scaled(column, values[self.train].ravel().astype(np.float64), train=False),
            length=values.shape[1],
        )

    def _scaled(self, column: Column, values: cells.Floats, train: bool = True) -> Column:
        """Return a column with the mean, deviation and share of missing values of training rows."""
        used = values[self.train] if train else values
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
        from pyarrow import types

        count = len(values)
        if not types.is_integer(found.type) or count < FEW_ROWS or np.isnan(values).any():
            return False
        low, high = values.min(), values.max()
        if high - low < 1.25 * count:
            return int(np.bincount((values - low).astype(np.int64)).max()) == 1
        return ID.fullmatch(name) is not None and len(np.unique(values)) == count
