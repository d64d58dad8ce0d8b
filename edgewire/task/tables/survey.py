"""What rows say of a table's columns: counts, means, and counts of texts, merged over nodes."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from edgewire.task.errors import TaskError
from edgewire.task.tables.columns import Column
from edgewire.task.tables.files import tidy

LEAST_ROWS = 20  # a node with fewer rows sends no survey
LEAST = 5  # a node tells a text, a mean and a deviation of at least this many of its rows
MOST_TOLD, LONGEST = 80, 100  # texts of a column that a node tells, and their characters
MOST_COLUMNS, MOST_BYTES = 1 << 16, 1 << 24  # of a node's survey
LARGEST = 1e150  # of a mean and a deviation, whose squares are added


@dataclass(frozen=True)
class Part:
    """What rows say of a column.

    `column`: its kind, a date's format, a window's length, and the mean and deviation of `told`
    training values, which is 0 for equal ones. `rows`, `known`: all rows, or the values
    in their windows, and how many have a value. `texts`: how many texts they have. `counts`: the
    training rows by their text; `unnamed`: those with a further text. `numbered`: whether the
    values number the rows.
    """

    column: Column
    rows: int = 0
    known: int = 0
    told: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    unnamed: int = 0
    texts: int = 0
    numbered: bool = False

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.column.name

    @property
    def kind(self) -> str:
        """The kind in words, which nodes must share; "" without values."""
        form = "".join(f" as {each}" for each in self.column.values)
        words = {"window": f"a list of {self.column.length} values", "time": f"a date{form}"}
        return words.get(self.column.kind, f"a {self.column.kind}{form}") if self.known else ""

    def discreet(self) -> Part:
        """Return what a node may tell: nothing of few rows."""
        ranked = sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))
        told = [(t, n) for t, n in ranked if n >= LEAST and len(t) <= LONGEST][:MOST_TOLD]
        unnamed = self.unnamed + sum(self.counts.values()) - sum(n for _, n in told)
        part = replace(self, counts=dict(told), unnamed=unnamed)
        if self.told >= LEAST * max(self.column.length, 1):
            return part
        plain = replace(self.column, mean=0.0, std=1.0)
        return replace(part, column=plain, told=0, numbered=False)

    def check(self) -> None:
        """Raise `ValueError` for what no node of ours tells."""
        counts = [*self.counts.values(), self.column.length]
        counts += [self.rows, self.known, self.told, self.unnamed, self.texts]
        texts = (*self.counts, *self.column.values)
        if (
            any(type(each) is not int or not 0 <= each < 1 << 53 for each in counts)
            or any(type(each) is not str or len(each) > LONGEST for each in texts)
            or len(self.counts) > MOST_TOLD
            or len(self.column.values) > 1
            or max(abs(self.column.mean), self.column.std) > LARGEST
            or not sum(self.counts.values()) + self.unnamed <= self.known <= self.rows
            or self.told not in (0, self.known)
        ):
            raise ValueError("a column is not valid")


@dataclass(frozen=True)
class Survey:
    """What rows say of all columns.

    `left`: columns that are no inputs, with the reason. `bad`: columns that cannot be taken, with
    what to do, without a cell.
    """

    parts: tuple[Part, ...]
    left: Mapping[str, str]
    bad: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of the columns by name: what to do for bad ones, and "" for those left out."""
        kinds = {each.name: each.kind for each in self.parts}
        return {**dict.fromkeys(self.left, ""), **self.bad, **kinds}

    def to_bytes(self) -> bytes:
        """Return the survey as compressed JSON."""
        text = json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))
        return zlib.compress(text.encode("utf-8", "surrogatepass"), 9)

    @classmethod
    def from_bytes(cls, data: Any) -> Survey:
        """Return a survey of `to_bytes`. Raises `TaskError` for anything else."""
        try:
            reader = zlib.decompressobj()
            plain = json.loads(reader.decompress(data, MOST_BYTES).decode("utf-8", "surrogatepass"))
            parts = [
                Part(**{**each, "column": Column(**each["column"])}) for each in plain["parts"]
            ]
            for part in parts:
                part.check()
            left, bad = (
                {tidy(k): tidy(v)[:LONGEST] for k, v in plain[key].items()}
                for key in ("left", "bad")
            )
            found = cls(tuple(parts), left, bad)
            if len(found.kinds) != len(parts) + len(left) + len(bad) or len(parts) > MOST_COLUMNS:
                raise ValueError("too many columns, or one twice")
            return found
        except Exception as error:  # hostile bytes raise a dozen types
            raise TaskError(f"its survey is not valid ({type(error).__name__})") from error


def refused(surveys: Mapping[int, Survey]) -> dict[int, str]:
    """Return the nodes with a column unlike that of most nodes, and why; `surveys`: by node."""
    kinds = {node: each.kinds for node, each in surveys.items()}
    votes = Counter(pair for each in kinds.values() for pair in each.items() if pair[1])
    common = {name: kind for (name, kind), count in votes.items() if 2 * count > len(kinds)}
    reasons = dict[int, str]()
    for node, own in kinds.items():
        odd = [name for name, kind in common.items() if own.get(name, "missing") not in ("", kind)]
        if odd:
            said = f"{odd[0]} is {own.get(odd[0], 'missing')}, and {common[odd[0]]} at most"
            more = f", and {len(odd) - 1} more columns differ" if len(odd) > 1 else ""
            reasons[node] = tidy(f"{said} nodes{more} (dataset.kinds= decides)")
    return reasons


def merged(surveys: Sequence[Survey]) -> Survey:
    """Return what all rows say, for surveys of which none is in `refused`.

    Columns that some of them lack, or that differ in their kinds, are left out.
    """
    if len(surveys) == 1:
        return surveys[0]
    parts = dict[str, list[Part]]()
    for part in (part for each in surveys for part in each.parts):
        parts.setdefault(part.name, []).append(part)
    left, bad = (
        {name: why for each in surveys for name, why in getattr(each, key).items()}
        for key in ("left", "bad")
    )
    for name, found in parts.items():
        if len(found) < len(surveys):
            left[name] = "not at all nodes"
        elif len({each.kind for each in found if each.known}) > 1:
            left[name] = "not of one kind at all nodes"
    together = [pooled(found) for name, found in parts.items() if name not in left]
    return Survey(tuple(together), left, bad)


def pooled(parts: Sequence[Part]) -> Part:
    """Return what all rows say of a column; `parts`: of some of the rows each, of one kind."""
    known = [each for each in parts if each.known] or parts[:1]
    column = next((each.column for each in known if each.column.kind == "time"), known[0].column)
    counts = sum((Counter(each.counts) for each in parts), Counter[str]())
    told = [each for each in parts if each.told]
    weights = [each.told for each in told]
    mean, std = 0.0, 1.0
    if told:
        means = np.array([each.column.mean for each in told])
        mean = float(np.average(means, weights=weights) if np.ptp(means) else means[0])
        squares = np.square([each.column.std for each in told]) + (means - mean) ** 2
        std = float(np.sqrt(np.average(squares, weights=weights)))
    return Part(
        replace(column, mean=mean, std=std),
        rows=sum(each.rows for each in parts),
        known=sum(each.known for each in parts),
        told=sum(weights),
        counts=counts,
        unnamed=sum(each.unnamed for each in parts),
        texts=len(counts) + sum(max(each.texts - len(each.counts), 0) for each in parts),
        numbered=all(each.numbered for each in known),
    )
