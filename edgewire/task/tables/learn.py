"""Learns a table's columns: their kinds, and the statistics of the training rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

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
from edgewire.task.tables.survey import Part, Survey

MOST_TEXTS = 40  # of a category; all further ones count as one
FEW_ROWS = 20  # with fewer, nothing is taken for a row number or for free text
MOST_SHOWN = 20  # problems that an error lists
# Names that pandas gives to the column of an index without a name, in CSV and Parquet files.
INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)*")
ID = re.compile(r"(?i:(.*[\W_])?id)|.*[a-z]I[dD]")
OTHER = "the target: name another as dataset.target="  # a cure
DATES = [day + clock for day in ("%d/%m/%Y", "%m/%d/%Y") for clock in ("", " %H:%M", " %H:%M:%S")]

T = TypeVar("T")
log = getLogger("edgewire")


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
        shown = [(name[:30], each.found, each.cure) for name, each in problems[:MOST_SHOWN]]
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
    values = ("true", "false", "null", "inf", "nan")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text) and text.lower() not in values:
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
    learner, findings = _Learner(rows, wishes), _Findings()
    findings.left.update((name, f"not in {file}") for name, file in rows.partial.items())
    parts = findings.each(learner.target, wishes.target)
    target = findings.each(partial(_target, wishes), parts)
    classes = not findings.problems and target and target[0].kind == "category"
    learner.train = training(targets_of(rows, Columns((), tuple(target))) if classes else None)
    if not findings.problems:
        target = [each if each.values else learner.scaled(each) for each in target]
    features = findings.each(learner.feature, learner.names)
    return _columns(rows.place, wishes, findings, features, target)


def survey_of(rows: Rows, wishes: Wishes) -> Survey:
    """Return what a node may tell of its rows; the log names the columns that cannot be taken."""
    learner, findings = _Learner(rows, wishes), _Findings()
    parts = findings.each(learner.target, [each for each in wishes.target if each in rows.names])
    parts += findings.each(learner.feature, [each for each in learner.names if each in rows.names])
    for name, problem in findings.problems:
        log.warning("%s: column %s: %s (%s)", rows.place, name, problem.found, problem.cure)
    if wishes.group in rows.names and wishes.group not in wishes.target:
        findings.left[str(wishes.group)] = "dataset.group"
    bad = {name: problem.cure for name, problem in findings.problems}
    return Survey(tuple(each.discreet() for each in parts), findings.left, bad)


def columns_of(survey: Survey, wishes: Wishes) -> Columns:
    """Return the columns of what all nodes' rows say, by the rules of `learn`, and its errors."""
    import pyarrow

    place, findings = "the survey", _Findings(left=dict(survey.left))
    parts = {each.name: each for each in survey.parts}
    names = {name: [0] for name in survey.kinds}
    _expect_known(Rows(pyarrow.table(names), place, wishes.reading), wishes)
    target = findings.each(partial(_target, wishes), [parts.pop(each) for each in wishes.target])
    features = [parts[n] for n in (parts if wishes.inputs is None else wishes.inputs) if n in parts]
    return _columns(place, wishes, findings, features, target)


@dataclass
class _Findings:
    """What was found beside columns: those that cannot be taken, and those that are no inputs."""

    problems: list[tuple[str, Problem]] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def each(self, call: Callable[[Any], T], items: Iterable[str | Part]) -> list[T]:
        """Return what `call` returns for each item, a column's name or part, where it succeeds."""
        found = []
        for item in items:
            name = item if isinstance(item, str) else item.name
            try:
                found.append(call(item))
            except Problem as problem:
                self.problems.append((name, problem))
            except Left as reason:
                self.left[name] = str(reason)
        return found


def _columns(
    place: str, wishes: Wishes, findings: _Findings, parts: list[Part], target: list[Column]
) -> Columns:
    """Return the columns of the features' parts and of a target."""
    features = findings.each(partial(_feature, wishes), parts)
    lengths = {each.length: each.name for each in features if each.kind == "window"}
    problems = findings.problems
    if len(lengths) > 1:
        first, *_, last = lengths
        found = f"lists of {last} values, others have {first}"
        problems.append((lengths[last], Problem(found, "give all lists one length", "skip")))
    if problems:
        raise Problems(place, problems, wishes)
    if not features:
        left = [*findings.left.items()][:MOST_SHOWN]
        why = ", ".join(f"{name} ({reason})" for name, reason in left)
        raise TaskError(
            f"{place}: dataset.inputs= must name at least one column: all are left out"
            + (f", {why}" if why else "")
        )
    left_out = tuple(findings.left.items())
    return Columns(tuple(features), tuple(target), wishes.group, wishes.reading, left_out)


def _target(wishes: Wishes, part: Part) -> Column:
    """Return the column of a target. Raises `Problem`."""
    if part.known < part.rows:
        found = f"{part.rows - part.known:,} of {part.rows:,} rows without a value"
        key = "drop_missing" if part.known and not wishes.plain else ""
        cure = "the target: dataset.drop_missing=true leaves them out" if key else OTHER
        raise Problem(found, cure, key)
    if part.column.kind != "category" and not (part.pair and part.texts > 1):
        return part.column
    many = part.texts > max(part.filled / 2, FEW_ROWS / 2)
    if many and wishes.classes is None and not wishes.plain:
        raise Problem(f"{part.texts:,} different texts in {part.filled:,} rows", OTHER)
    names = class_names(part.counts, wishes.classes, wishes.on_device)
    return Column(part.name, "category", values=names)


def _feature(wishes: Wishes, part: Part) -> Column:
    """Return the column of an input. Raises `Problem` or `Left`."""
    column, name = part.column, part.name
    column = replace(column, missing=(part.rows - part.known) / max(part.rows, 1))
    named = wishes.inputs is not None or name in wishes.kinds or wishes.plain
    if column.kind == "category":
        if not named and part.filled >= FEW_ROWS and part.texts > part.filled / 2:
            found = f"{part.texts:,} different texts in {part.filled:,} rows"
            cure = f"free text: leave it out, or dataset.kinds={{{name}: category}}"
            raise Problem(found, cure, "skip")
        ranked = sorted(part.counts, key=lambda text: (-part.counts[text], text))
        if not named and len(ranked) + (part.unnamed > 0) < 2 and not (ranked and column.missing):
            raise Left("rare texts" if part.unnamed else "constant" if part.known else "empty")
        # a single further text needs no other place
        other = len(ranked) > MOST_TEXTS + 1 or part.unnamed > 0
        return replace(column, values=(*ranked[: MOST_TEXTS + (not other)],), other=other)
    if named or column.kind == "window":
        return column
    if not part.known:
        raise Left("empty")
    if part.constant and not column.missing:
        raise Left("constant")
    if part.numbered:
        cure = f"a row number? leave it out, or dataset.kinds={{{name}: number}}"
        raise Problem(f"{part.filled:,} different whole numbers", cure, "skip")
    return column


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

    @property
    def names(self) -> Sequence[str]:
        """The names of the features, and of columns that may be some."""
        if self.wishes.inputs is not None:
            return self.wishes.inputs
        used = {*self.wishes.target, self.wishes.group}
        return [name for name in self._places if name not in used]

    def _cells(self, name: str) -> Any:
        places = self._places[name]
        if len(places) > 1:
            key = "" if self.wishes.plain or name in self.wishes.target else "skip"
            raise Problem(f"{len(places)} columns have this name", "rename all but one", key)
        return self.rows.table.column(places[0])

    def target(self, name: str) -> Part:
        """Return what all rows say of a target. Raises `Problem`."""
        found, wishes = self._cells(name), self.wishes
        several, plain, pair = len(wishes.target) > 1, wishes.plain, False
        try:
            places, texts = cells.encoded(found, self._missing)
            number = several or self._kind(name, found).kind == "number"
            asked = wishes.kinds.get(name, "category" if wishes.classes and not several else None)
            if asked is None and not several and not cells.is_text(found.type):
                two = len(texts) < 3 and cells.share(texts, places, r"^-?\d+$") == 1
                asked = "category" if str(found.type) == "bool" else None
                pair = asked is None and two and not plain
            elif asked not in (None, "category", "number"):
                raise OddCells(f"the kind {asked}, and a number or a category is taken")
            number = number and asked is None and (several or self._numeric(found) == 1)
            if asked != "number" and not number:
                return self._category(Column(name, "category"), found)
            whole = plain and not several and str(found.type).startswith(("int", "uint"))
            column = Column(name, "integer" if whole else "number")
            part = self._measured(column, cells.numbers(self.rows, found))
            counts = self._category(column, found).counts if pair else {}
            return replace(part, counts=counts, pair=pair, texts=len(texts))
        except OddCells as odd:
            raise Problem(str(odd), OTHER) from odd

    def feature(self, name: str) -> Part:
        """Return what the rows say of an input. Raises `Problem` or `Left`."""
        wishes = self.wishes
        if name in wishes.skip:
            raise Left("dataset.skip")
        named = wishes.index or wishes.inputs is not None or name in wishes.kinds
        if INDEX.fullmatch(name) and not named:
            raise Left("pandas' index" if name else "without a name")
        found = self._cells(name)
        column = Column(name)
        try:
            column = column if wishes.plain else self._kind(name, found)
            if column.kind == "window":
                window = cells.windows(self.rows, found)
                flat = window[self.train].ravel().astype(np.float64)
                return self._measured(replace(column, length=window.shape[1]), flat)
            if column.kind == "category":
                return self._category(column, found)
            values = values_of(self.rows, found, column)
        except OddCells as odd:
            raise self._problem(name, found, column.kind, odd) from odd
        if column.kind == "date" and (values[~np.isnan(values)] % 1).any():
            column = replace(column, kind="time")
        if wishes.plain and (gaps := np.isnan(values)).any():
            first, count = self.rows.row(int(gaps.argmax())), int(gaps.sum())
            said = f"no value in {count:,} of {len(values):,} rows, first in {first}"
            raise Problem(said, "fill them, name other dataset.inputs=, or take dataset=table")
        part = self._measured(column, values[self.train])
        numbered = self._numbers_rows(name, found, values)
        return replace(part, filled=int((~np.isnan(values)).sum()), numbered=numbered)

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
        texts = cells.encoded(found, self._missing)[1]
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
        return Column(name, "category")

    def _category(self, column: Column, found: Any) -> Part:
        """Return what the rows say of a column of texts."""
        places, texts = cells.encoded(found, self._missing)
        used = places[self.train]
        counts = np.bincount(used[used >= 0], minlength=len(texts))
        seen = np.flatnonzero(counts)
        pairs = zip(texts.take(seen).to_pylist(), counts[seen].tolist(), strict=True)
        known, filled = (int((each >= 0).sum()) for each in (used, places))
        return Part(column, len(used), known, counts=dict(pairs), filled=filled, texts=len(texts))

    def scaled(self, column: Column) -> Column:
        """Return a column with the mean and the deviation of its training rows."""
        values = cells.numbers(self.rows, self._cells(column.name))
        return self._measured(column, values[self.train]).column

    def _measured(self, column: Column, used: cells.Floats) -> Part:
        """Return what values say of a column of numbers; `used`: float64 (k,), NaN for gaps."""
        good = used[~np.isnan(used)]
        if not len(good):
            return Part(column, len(used))
        largest = np.abs(good).max() or 1.0
        part = good / largest  # squares of large numbers overflow
        mean, std = float(part.mean() * largest), float(part.std() * largest)
        constant = bool(good.min() == good.max())
        if constant:  # the mean may be rounded, and the deviation is not 0 then
            mean, std = float(good[0]), 1.0
        column = replace(column, mean=mean, std=std or 1.0)
        return Part(column, len(used), len(good), len(good), constant)

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
