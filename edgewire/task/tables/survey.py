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
    values; `constant`: whether these are equal. `rows`, `known`: the training rows, or the values
    in their windows, and how many have a value. `counts`: the training rows by their text;
    `unnamed`: those with a further text. `filled`, `texts`: of all rows, how many have a value, and
    how many values differ. `numbered`: whether the values number the rows. `pair`: whether a target
    has at most two whole numbers.
    """

    column: Column
    rows: int = 0
    known: int = 0
    told: int = 0
    constant: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    unnamed: int = 0
    filled: int = 0
    texts: int = 0
    numbered: bool = False
    pair: bool = False

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
        return replace(part, column=plain, told=0, constant=False, numbered=False)

    def check(self) -> None:
        """Raise `ValueError` for what no node of ours tells."""
        counts = [*self.counts.values(), self.column.length]
        counts += [self.rows, self.known, self.told, self.unnamed, self.filled, self.texts]
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
        """The kinds of the columns, and "" for the others, by name."""
        return {
            **dict.fromkeys([*self.left, *self.bad], ""),
            **{p.name: p.kind for p in self.parts},
        }

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


def refused(surveys: Mapping[int, Survey], target: Sequence[str] = ()) -> dict[int, str]:
    """Return the nodes with a column unlike that of most nodes, or with a bad one, and why.

    `surveys`: by node. `target`: the columns that each node must have.
    """
    kinds = {node: each.kinds for node, each in surveys.items()}
    reasons = {
        node: [f"{name}: {said}" for name, said in each.bad.items()]
        for node, each in surveys.items()
    }
    for name in dict.fromkeys(name for each in kinds.values() for name in each):
        votes = Counter(each[name] for each in kinds.values() if each.get(name))
        lacking = [node for node, each in kinds.items() if name not in each]
        if 2 * len(lacking) > len(kinds) and name not in target:
            continue
        for node in lacking:
            reasons[node].append(f"there is no column {tidy(name)}")
        for node, kind in ((node, each.get(name)) for node, each in kinds.items()):
            if kind and 2 * votes[kind] <= votes.total():
                others = " or ".join(each for each in votes if each != kind)
                cure = f"dataset.kinds={{{tidy(name)}: KIND}} decides"
                reasons[node].append(
                    f"{tidy(name)} is {kind}, and {others} at other nodes ({cure})"
                )
    return {
        node: "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")
        for node, said in reasons.items()
        if said
    }


def merged(surveys: Sequence[Survey]) -> Survey:
    """Return what all rows say, for surveys of which none is in `refused`.

    Columns that some of them lack are left out.
    """
    if len(surveys) == 1:
        return surveys[0]
    parts = dict[str, list[Part]]()
    for part in (part for each in surveys for part in each.parts):
        parts.setdefault(part.name, []).append(part)
    left = {name: why for each in surveys for name, why in each.left.items()}
    few = {name: "not at all nodes" for name in parts if len(parts[name]) < len(surveys)}
    together = [pooled(found) for name, found in parts.items() if name not in few]
    return Survey(tuple(together), {**left, **few})


def pooled(parts: Sequence[Part]) -> Part:
    """Return what all rows say of a column; `parts`: of some of the rows each, of one kind."""
    known = [each for each in parts if each.known] or parts[:1]
    counts, sums = Counter[str](), Counter[str]()
    for each in parts:
        counts.update(each.counts)
        sums.update({key: getattr(each, key) for key in ("rows", "known", "unnamed", "filled")})
    kind = next((each.column for each in known if each.column.kind == "time"), known[0].column)
    told = [each for each in known if each.told]
    mean, std = _moments(told) if told else (0.0, 0.0)
    return Part(
        replace(kind, mean=mean, std=std or 1.0),
        told=sum(each.told for each in told),
        constant=bool(told) and not std,
        counts=counts,
        texts=len(counts) + sum(max(each.texts - len(each.counts), 0) for each in parts),
        numbered=all(each.numbered for each in known),
        pair=all(each.pair for each in known) and len(counts) <= 2,
        **sums,
    )


def _moments(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the mean and the deviation of all values."""
    weights = np.array([each.told for each in parts], np.float64)
    weights /= weights.sum()
    means = np.array([each.column.mean for each in parts])
    stds = np.array([0.0 if each.constant else each.column.std for each in parts])
    if not stds.any() and not np.ptp(means):
        return float(means[0]), 0.0
    mean = float(weights @ means)
    largest = float(max(stds.max(), np.abs(means - mean).max()))  # small squares would be 0
    squares = (stds / largest) ** 2 + ((means - mean) / largest) ** 2
    return mean, largest * float(np.sqrt(weights @ squares))
