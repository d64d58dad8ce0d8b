"""What a table's columns mean: kinds, statistics of the training rows, and texts, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from edgewire.task.errors import TaskError, listed

SHOWN = {"number": "numbers", "category": "categories", "date": "dates", "time": "times"}
SHOWN = {**SHOWN, "window": "windows", "integer": "numbers"}
KINDS = tuple(SHOWN)
# signs that an override has in quotes, as words
WORDS = {"tab": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|", "point": "."}
SURVEY = "survey"  # in place of columns: the nodes are asked for them
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?")  # cells without value


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `kind`: `number`; `category`; `date`, whole days; `time`, days with a time; `window`, a list of
    `length` numbers in each cell; `integer`, a target that stays whole. `mean`, `std`: of the
    training rows, of numbers and windows in the column's unit, and of dates in days since 1970.
    `missing`: the share of the training rows without a value. `values`: a category's texts, the
    most frequent first (of a target: the names of the classes), or a date's format if it is not
    ISO 8601. `other`: whether the training rows have further texts, which all count as one.
    `counts`: the rows of each class of a target with at most 10.
    """

    name: str
    kind: str = "number"
    mean: float = 0.0
    std: float = 1.0
    missing: float = 0.0
    values: tuple[str, ...] = ()
    other: bool = False
    length: int = 0
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "counts", tuple(self.counts))
        numbers = (self.mean, self.std, self.missing, *self.counts)
        good = all(isinstance(each, int | float) and math.isfinite(each) for each in numbers)
        texts = all(isinstance(each, str) for each in (self.name, *self.values))
        if not good or not texts or self.kind not in KINDS or self.std < 0 or self.length < 0:
            raise TaskError(
                f"the column {str(self.name)[:40]!r} is not valid: kinds are {', '.join(KINDS)}"
            )


@dataclass(frozen=True)
class Reading:
    """How a file of text is read; None: as its first rows suggest.

    `delimiter`: between two cells. `decimal`: the character before a number's fraction. `missing`:
    the texts of cells without a value. `header`: whether the first line names the columns. `usual`:
    the `decimal` of the training's file, for new rows whose numbers do not tell theirs.
    """

    delimiter: str | None = None
    decimal: str | None = None
    missing: tuple[str, ...] | None = None
    header: bool | None = None
    usual: str | None = None

    def __post_init__(self) -> None:
        delimiter, decimal = (WORDS.get(str(each), each) for each in (self.delimiter, self.decimal))
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
            known = ", ".join(WORDS)
            raise TaskError(f"dataset.delimiter={delimiter!r}: give one sign, or a word: {known}")
        if not {decimal, self.usual} <= {None, ".", ","}:
            raise TaskError(f"dataset.decimal={decimal!r}: give point or comma")
        object.__setattr__(self, "delimiter", delimiter)
        object.__setattr__(self, "decimal", decimal)
        if self.missing is not None:
            object.__setattr__(self, "missing", tuple(map(str, self.missing)))


@dataclass(frozen=True)
class Columns:
    """The columns that a run uses.

    `features`: the inputs, in order. `target`: one category for classes, or numbers; () for none.
    `group`: the column with the user, writer or sensor of a row. `reading`: how the user said that
    files are read. `left`: the names of the columns that are no inputs, with the reason.
    """

    features: tuple[Column, ...]
    target: tuple[Column, ...] = ()
    group: str | None = None
    reading: Reading = field(default_factory=Reading)
    left: tuple[tuple[str, str], ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the target's classes; () for other targets."""
        return next((each.values for each in self.target if each.kind == "category"), ())

    def lines(self) -> list[str]:
        """Return what the columns are, for a screen: at most 7 lines."""
        found = dict[str, list[str]]()
        for each in self.features:
            found.setdefault(SHOWN[each.kind], []).append(_described(each))
        found["left out"] = [f"{name or repr(name)} ({why})" for name, why in self.left]
        found["target"] = [_described(each, target=True) for each in self.target]
        return [f"{name:<10}  {listed(texts)}" for name, texts in found.items() if texts]

    def to_json(self) -> str:
        """Return the columns as JSON without default values, and without `${`."""
        plain = {
            "features": [plain_of(each) for each in self.features],
            "target": [plain_of(each) for each in self.target],
            "group": self.group,
            "reading": plain_of(self.reading),
            "left": self.left,
        }
        return json.dumps(plain, ensure_ascii=False).replace("${", "\\u0024{")

    @classmethod
    def from_json(cls, text: str) -> Columns:
        """Return the columns of a text by `to_json`. Raises `TaskError` for any other text."""
        try:
            plain = json.loads(text)
            return cls(
                tuple(Column(**each) for each in plain["features"]),
                tuple(Column(**each) for each in plain.get("target", ())),
                plain.get("group"),
                Reading(**plain.get("reading", {})),
                tuple((str(name), str(why)) for name, why in plain.get("left", ())),
            )
        except TaskError:
            raise
        except Exception as error:  # hostile texts raise a dozen types
            raise TaskError(
                f"dataset.columns are not the JSON that a run writes ({type(error).__name__}): "
                f"leave them out, or give the file of a run or of a survey"
            ) from error


def _described(column: Column, target: bool = False) -> str:
    """Return a column in a few words; `target`: whether it is predicted."""
    words = []
    if column.kind == "category":
        texts = "classes" if target else "texts and others" if column.other else "texts"
        words = [f"{len(column.values)} {texts}"]
        if column.counts:
            words = [f"{t[:20]} {n:,}" for t, n in zip(column.values, column.counts, strict=False)]
    elif target:
        words = [f"a number, mean {column.mean:.4g}, deviation {column.std:.4g}"]
    words += [f"{column.missing:.0%} missing"] * (column.missing >= 0.005)
    return column.name[:40] + (f" ({', '.join(words)})" if words else "")


def plain_of(node: Column | Reading) -> Mapping[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, for JSON."""
    defaults = {each.name: each.default for each in fields(node)}
    return {name: value for name, value in asdict(node).items() if value != defaults[name]}
