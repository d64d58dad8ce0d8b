"""Learns a table's columns: their kinds, and the statistics of the training rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.task.datasets.data import Split, holdout
from edgewire.task.datasets.files import class_names
from edgewire.task.errors import TaskError, listed
from edgewire.task.override_text import text_of
from edgewire.task.tables.arrow import compute
from edgewire.task.tables.columns import MISSING, Column, Columns, Reading
from edgewire.task.tables.files import CLOCKS, DATES, Rows, are_codes, is_text, tidy
from edgewire.task.tables.read import (
    Floats,
    OddCells,
    dated,
    encoded,
    expect_there,
    is_day,
    is_window,
    numeric,
    targets_of,
    values_of,
    windows,
)
from edgewire.task.tables.survey import Part, Survey
from edgewire.task.tensors import only

MOST_TEXTS = 40  # of a category; all further ones count as one
FEW_ROWS = 20  # with fewer, nothing is taken for a row number or for free text
MOST_SHOWN = 20  # problems that an error lists
# Names that pandas gives to the column of an index without a name, in CSV and Parquet files.
INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)*")
ID = re.compile(r"(?i:(.*[\W_])?id)|.*[a-z]I[dD]")
OTHER = "the target: name another as dataset.target="  # a cure
PLAIN = "fix them, name other dataset.inputs=, or take dataset=table"  # the cure in dataset=csv
LEFT = "left out"
AMBIGUOUS = [day + clock for day in ("%d/%m/%Y", "%m/%d/%Y") for clock in CLOCKS]

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

    def names(self, name: str) -> bool:
        """Return whether the user said that a column is an input, or what it is."""
        return self.inputs is not None or name in self.kinds


@dataclass(eq=False)
class Problem(Exception):
    """A column is no input, or cannot be taken. `found`: why; `cure`: what to do.

    `key`: LEFT if it is left out; or the option that mends it, skip, kinds, missing or
    drop_missing, if there is one; `value`: the kind for `kinds`, or the list for `missing`.
    """

    found: str
    cure: str = ""
    key: str = ""
    value: Any = ""


Found = list[tuple[str, Problem]]  # names of columns, and why they are no inputs


class Problems(TaskError):
    """All columns that cannot be taken. `screen`: the error as a table, for a terminal."""

    def __init__(self, place: str, problems: Found, wishes: Wishes) -> None:
        several = f"{len(problems):,} columns cannot be taken as they are"
        one = "1 column cannot be taken as it is"
        head = f"{place}: {one if len(problems) == 1 else several}"
        shown = [
            (name[:30], each.found, PLAIN if wishes.plain else each.cure)
            for name, each in problems[:MOST_SHOWN]
        ]
        wide, wider = (max(len(row[place]) for row in shown) for place in range(2))
        rows = [f"  {name:<{wide}}  {found:<{wider}}  {cure}" for name, found, cure in shown]
        words = " ".join(map(shlex.quote, overrides_of(problems, wishes)))
        more = len(problems) - MOST_SHOWN
        ends = [f"and {more:,} more"] * (more > 0) + [f"then add: {words}"] * bool(words)
        said = [f"{name}: {found} ({cure})" for name, found, cure in shown]
        super().__init__(" ".join(f"{head}: {'; '.join([*said, *ends])}".splitlines()))
        self.screen = "\n".join([head, *rows, *ends])


def overrides_of(problems: Found, wishes: Wishes) -> list[str]:
    """Return the overrides that mend all problems that an option can mend."""
    keys = {each.key for _, each in problems} if not wishes.plain else set()
    skip = [name for name, each in problems if each.key == "skip"]
    kinds = {**wishes.kinds, **{name: p.value for name, p in problems if p.key == "kinds"}}
    odd = [text for _, each in problems if each.key == "missing" for text in each.value]
    missing = dict.fromkeys([*(wishes.reading.missing or ()), *odd])
    values = {
        "skip": [*dict.fromkeys([*wishes.skip, *skip])],
        "kinds": kinds if "".join(kinds).isascii() else [f"{n}: {k}" for n, k in kinds.items()],
        "missing": [each for each in missing if each not in MISSING],
        "drop_missing": True,
    }
    return [f"dataset.{key}={text_of(each)}" for key, each in values.items() if key in keys]


def learn(rows: Rows, wishes: Wishes, cut: int | None = None, share: float = 0.0) -> Columns:
    """Return the columns of a table.

    Args:
        rows: all rows; the kinds and the classes come from all.
        wishes: what the user said.
        cut: the number of training rows, from whose values the statistics come, if there are files
            to test on; None: all, but for those that `holdout` holds back.
        share: the share of each class that is held back.

    Raises:
        Problems: columns that cannot be taken, all of them.
        TaskError: names of absent columns, unknown classes, or fewer than two.
    """
    _expect_known(rows.place, rows.names, wishes)
    learner, found = _Learner(rows, wishes), Found()
    target = _each(partial(_target, wishes), _each(learner.part, wishes.target, found), found)
    labels, every = None, torch.arange(cut or rows.table.num_rows)
    if not found and target and target[0].kind == "category":
        labels = targets_of(rows, Columns((), tuple(target)))
    if cut is None and 0 < share < 1:
        split = Split(torch.arange(rows.table.num_rows), () if labels is None else labels)
        every = only(holdout(split, share, by_class=labels is not None)[0].inputs)
    learner.train = every.numpy()
    if not found and labels is None:
        target = [learner.part(name).column for name in wishes.target]
    return _columns(rows.place, wishes, found, _each(learner.part, learner.names, found), target)


def survey_of(rows: Rows, wishes: Wishes) -> Survey:
    """Return what a node may tell of its rows; the log names the columns that cannot be taken."""
    learner, found, there = _Learner(rows, wishes), Found(), {*rows.names}
    names = [each for each in (*wishes.target, *learner.names) if each in there]
    parts = _each(learner.part, names, found)
    left, problems = _divided(found)
    for name, problem in problems:
        log.warning("%s: column %s: %s (%s)", rows.place, name, problem.found, problem.cure)
    if wishes.group in there and wishes.group not in wishes.target:
        left[str(wishes.group)] = "dataset.group"
    bad = {name: problem.cure for name, problem in problems}
    return Survey(tuple(each.discreet() for each in parts), left, bad)


def columns_of(survey: Survey, wishes: Wishes) -> Columns:
    """Return the columns of what all nodes' rows say, by the rules of `learn`, and its errors."""
    _expect_known("the survey", [*survey.kinds], wishes)
    parts = {each.name: each for each in survey.parts}
    bad = {**{name: survey.left.get(name, "") for name in wishes.target}, **survey.bad}
    found = [(name, Problem(why, OTHER)) for name, why in bad.items() if name not in parts]
    found += [(name, Problem(why, key=LEFT)) for name, why in survey.left.items()]
    told = [parts.pop(each) for each in wishes.target if each in parts]
    target = _each(partial(_target, wishes), told, found)
    features = [parts[n] for n in (parts if wishes.inputs is None else wishes.inputs) if n in parts]
    return _columns("the survey", wishes, found, features, target)


def _each(call: Callable[[Any], T], items: Iterable[str | Part], found: Found) -> list[T]:
    """Return what `call` returns for columns, by name or part, and add problems to `found`."""
    results = []
    for item in items:
        try:
            results.append(call(item))
        except Problem as problem:
            found.append((item if isinstance(item, str) else item.name, problem))
    return results


def _divided(found: Found) -> tuple[dict[str, str], Found]:
    """Return why columns are no inputs, by name, and the columns that cannot be taken."""
    left = {name: each.found for name, each in found if each.key == LEFT}
    return left, [(name, each) for name, each in found if each.key != LEFT]


def _columns(
    place: str, wishes: Wishes, found: Found, parts: list[Part], target: list[Column]
) -> Columns:
    """Return the columns of the features' parts and of a target."""
    features = _each(partial(_feature, wishes), parts, found)
    lengths = {each.length: each.name for each in features if each.kind == "window"}
    left, problems = _divided(found)
    if len(lengths) > 1:
        first, *_, last = lengths
        said = f"lists of {last} values, others have {first}"
        problems.append((lengths[last], Problem(said, "give all lists one length", "skip")))
    if problems:
        raise Problems(place, problems, wishes)
    if not features:
        why = listed([f"{name} ({reason})" for name, reason in left.items()]) or "there is no other"
        raise TaskError(
            f"{place}: dataset.inputs= must name at least one column: all are left out, {why}"
        )
    return Columns(
        tuple(features), tuple(target), wishes.group, wishes.reading, tuple(left.items())
    )


def _target(wishes: Wishes, part: Part) -> Column:
    """Return the column of a target. Raises `Problem`."""
    if part.known < part.rows:
        found = f"{part.rows - part.known:,} of {part.rows:,} rows without a value"
        drops = "the target: dataset.drop_missing=true leaves them out"
        raise Problem(found, *((drops, "drop_missing") if part.known else (OTHER,)))
    if part.column.kind != "category":
        return part.column
    many = part.texts > max(part.known / 2, FEW_ROWS / 2)
    if many and wishes.classes is None and not wishes.plain:
        raise Problem(f"{part.texts:,} different texts in {part.known:,} rows", OTHER)
    names = class_names(part.counts, wishes.classes, wishes.on_device)
    counts = tuple(part.counts.get(name, 0) for name in names if len(names) <= 10)
    return Column(part.name, "category", values=names, counts=counts)


def _feature(wishes: Wishes, part: Part) -> Column:
    """Return the column of an input. Raises `Problem`."""
    gaps, name = part.rows - part.known, part.name
    column = replace(part.column, missing=gaps / max(part.rows, 1))
    if wishes.plain and gaps:
        raise Problem(f"no value in {gaps:,} of {part.rows:,} rows")
    named = wishes.plain or wishes.names(name)
    if column.kind == "category":
        if not named and part.known >= FEW_ROWS and part.texts > part.known / 2:
            found = f"{part.texts:,} different texts in {part.known:,} rows"
            cure = f"free text: leave it out, or dataset.kinds={{{name}: category}}"
            raise Problem(found, cure, "skip")
        ranked = sorted(part.counts, key=lambda text: (-part.counts[text], text))
        if not named and len(ranked) + (part.unnamed > 0) < 2 and not (ranked and gaps):
            why = "rare texts" if part.unnamed else "constant" if part.known else "empty"
            raise Problem(why, key=LEFT)
        # a single further text needs no other place
        other = len(ranked) > MOST_TEXTS + 1 or part.unnamed > 0
        return replace(column, values=(*ranked[: MOST_TEXTS + (not other)],), other=other)
    if named or column.kind == "window":
        return column
    if not part.known or (part.told and not column.std and not gaps):
        raise Problem("constant" if part.known else "empty", key=LEFT)
    if part.numbered:
        cure = f"a row number? leave it out, or dataset.kinds={{{name}: number}}"
        raise Problem(f"{part.known:,} different whole numbers", cure, "skip")
    return column


def _expect_known(place: str, names: Sequence[str], wishes: Wishes) -> None:
    """Raise `TaskError` for options that name absent columns, or contradict each other."""
    inputs, group = wishes.inputs or (), () if wishes.group is None else (wishes.group,)
    given = {"target": wishes.target, "inputs": inputs, "group": group}
    for key, wanted in {**given, "kinds": wishes.kinds, "skip": wishes.skip}.items():
        expect_there(place, names, wanted, key)
    twice = len({*inputs}) < len(inputs) or {*wishes.target, *group} & {*inputs}
    if wishes.inputs is not None and (not inputs or twice):
        raise TaskError(
            f"{place}: dataset.inputs= must name at least one column, each once, and not the "
            f"target or the group"
        )
    if wishes.classes is not None and len(wishes.target) != 1:
        raise TaskError("dataset.classes names the classes of one target: give dataset.target=NAME")


class _Learner:
    """Learns columns one by one. `train`: the places of the training rows, once they are known."""

    def __init__(self, rows: Rows, wishes: Wishes) -> None:
        self.rows, self.wishes = rows, wishes
        self.train = np.arange(rows.table.num_rows)
        self._places = dict[str, list[int]]()
        for place, name in enumerate(rows.names):
            self._places.setdefault(name, []).append(place)

    @property
    def names(self) -> Sequence[str]:
        """The names of the features, and of columns that may be some."""
        used = {*self.wishes.target, self.wishes.group}
        return self.wishes.inputs or [name for name in self._places if name not in used]

    def part(self, name: str) -> Part:
        """Return what the rows say of a column. Raises `Problem`."""
        rows, wishes, places = self.rows, self.wishes, self._places[name]
        target = name in wishes.target
        free = not target and not wishes.names(name)
        if name in wishes.skip and not target:
            raise Problem("dataset.skip", key=LEFT)
        if free and not wishes.index and INDEX.fullmatch(name):
            raise Problem("pandas' index", key=LEFT)
        if len(places) > 1:
            key = "" if target else "skip"
            raise Problem(f"{len(places)} columns have this name", "rename all but one", key)
        cells, column = rows.table.column(places[0]), Column(name)
        try:
            column = self._kind(name, cells, target)
            if column.kind == "category":
                return self._category(column, cells)
            if target and column.kind in ("date", "window"):
                raise OddCells(f"cells of {cells.type}, and classes or numbers are taken")
            if column.kind == "window":
                values = windows(rows, cells).astype(np.float64)
                column = replace(column, length=values.shape[1])
            else:
                values = values_of(rows, cells, column)
        except OddCells as odd:
            other = f"no {column.kind}: fix them, or leave it out"
            cure: tuple[Any, ...] = (OTHER,) if target else (other, "skip")
            if column.kind == "number" and is_text(cells.type):
                codes, texts = encoded(rows, cells)
                wrong = numeric(rows, texts).is_null()
                if 0 < wrong.sum().as_py() < 10 and np.mean(np.append(wrong, 0)[codes]) < 0.5:
                    said = "no number: fix them, or name them in dataset.missing="
                    cure = (said, "missing", texts.filter(wrong).to_pylist())
                elif free:
                    said = f"no number: fix them, or dataset.kinds={{{name}: category}}"
                    cure = (said, "kinds", "category")
            raise Problem(str(odd), *cure) from odd
        gaps = np.isnan(values)
        if column.kind == "date" and (values[~gaps] % 1).any():
            column = replace(column, kind="time")
        part = self._measured(column, values, gaps)
        whole = str(cells.type).startswith(("int", "uint"))
        if not whole or not free or gaps.any() or len(values) < FEW_ROWS:
            return part
        steps = np.diff(np.sort(values))
        step, named = steps.min(), ID.fullmatch(name) is not None  # dropped rows leave holes
        even = step and not (steps % step).any() and steps.sum() < 2 * step * len(values)
        if even and named and not wishes.plain:
            raise Problem("numbers the rows", key=LEFT)
        return replace(part, numbered=bool(step and (named or steps.sum() < 1.25 * len(values))))

    def _kind(self, name: str, cells: Any, target: bool) -> Column:
        """Return a column with its kind: what the user said, or what most cells are."""
        wishes, kind = self.wishes, cells.type
        one, plain = target and len(wishes.target) == 1, wishes.plain
        asked = wishes.kinds.get(name)
        if asked is None and one and (wishes.classes is not None or str(kind) == "bool"):
            asked = "category"
        if asked is not None:
            form = (asked,) if "%" in asked else ()
            return Column(name, "date" if form or asked == "time" else asked, values=form)
        if (target and not one) or (plain and not target):
            return Column(name)
        if is_window(kind) or is_day(kind):
            return Column(name, "window" if is_window(kind) else "date")
        if not is_text(kind):
            whole = str(kind).startswith(("int", "uint"))
            if plain or not target:
                return Column(name, "integer" if target and whole else "number")
            two = compute.unique(cells.drop_null())[:3].to_pylist()
            classes = all(
                isinstance(each, int | float) and float(each).is_integer() for each in two
            )
            return Column(name, "category" if 0 < len(two) < 3 and classes else "number")
        texts = encoded(self.rows, cells)[1]
        if are_codes(texts.to_pylist()):
            return Column(name, "category")
        share = 1 - numeric(self.rows, texts).null_count / max(len(texts), 1)
        enough = 0.5 if not target else 0.9 if len(texts) > FEW_ROWS else 1
        if share >= enough:  # the others are shown as no numbers
            return Column(name)
        if len(texts) and not target and not dated(texts, DATES).null_count:
            return Column(name, "date")
        forms = [] if target else [f for f in AMBIGUOUS if not dated(texts, [f]).null_count]
        if len(forms) > 1:
            cure = f"day or month first? this is {forms[0]}"
            raise Problem(f'dates such as "{tidy(texts[0])}"', cure, "kinds", forms[0])
        return Column(name, "date" if forms else "category", values=tuple(forms))

    def _category(self, column: Column, cells: Any) -> Part:
        """Return what the rows say of a column of texts."""
        places, texts = encoded(self.rows, cells)
        used = places[self.train]
        counts = np.bincount(used[used >= 0], minlength=len(texts))
        seen = np.flatnonzero(counts)
        pairs = zip(texts.take(seen).to_pylist(), counts[seen].tolist(), strict=True)
        return Part(
            column, len(places), int((places >= 0).sum()), counts=dict(pairs), texts=len(texts)
        )

    def _measured(self, column: Column, values: Floats, gaps: NDArray[np.bool_]) -> Part:
        """Return what values say of a column, float64 (N,) or (N, length); `gaps`: which lack."""
        good = values[self.train][~gaps[self.train]]
        if len(good):  # the mean of equal values may be rounded, and the deviation is not 0 then
            equal = good.min() == good.max()
            mean, std = (good[0], 0.0) if equal else (good.mean(), good.std())
            column = replace(column, mean=float(mean), std=float(std))
        return Part(column, values.size, values.size - int(gaps.sum()), len(good))
