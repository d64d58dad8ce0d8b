"""What must be so in nodes' replies for a strategy to aggregate them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from logging import getLogger
from typing import cast

from flwr.app import Message, MetricRecord, RecordDict

from ..layout import Layout
from ..payload import describe
from ..registry import get
from ..stages import PayloadError, Quantizer
from ..statistics import variances
from .arrays import Vector, records

log = getLogger("edgewire")


def weight_of(content: RecordDict, key: str) -> float:
    """Return a node's weight.

    Raises `PayloadError` for what would make the wrapped strategy give up the whole round.
    """
    metrics = records(content, MetricRecord)
    if len(metrics) != 1:
        raise PayloadError("a reply must hold one MetricRecord")
    weight = metrics[0][1].get(key)
    if not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise PayloadError(f"{key} must be a positive number, not {weight!r}")
    return float(weight)


def alike(replies: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return the replies whose records are those of most, and the others."""
    kinds = [_kinds(reply.content) for reply in replies]
    usual = Counter(kinds).most_common(1)
    pairs = list(zip(replies, kinds, strict=True))
    same = [reply for reply, kind in pairs if kind == usual[0][0]]
    return same, [reply for reply, kind in pairs if kind != usual[0][0]]


def _kinds(content: RecordDict) -> frozenset[tuple[str, str, int]]:
    """Return what a strategy wants to be the same in all replies: names, and lengths of lists."""
    found = set[tuple[str, str, int]]()
    for name, record in content.items():
        lists = isinstance(record, MetricRecord)
        found |= {
            (name, key, len(value) if lists and isinstance(value, list) else -1)
            for key, value in record.items()
        } or {(name, "", -1)}
    return frozenset(found)


def _unnamed(names: Sequence[str]) -> bool:
    """Return whether tensors have numbers for names, as those of a list of arrays do."""
    return len(names) > 1 and all(name.isdecimal() for name in names)


def _loses(payload: bytes) -> bool:
    """Return whether a payload lacks anything of what was given."""
    said = describe(payload)
    exact = cast(type[Quantizer], get("quantizer", said.quantizer)).exact
    return said.selected < said.n or not exact


def warn_of_no_names(names: Sequence[str], exact: Sequence[object], payload: bytes) -> bool:
    """Warn of a lossy payload for tensors of which nobody knows which are statistics.

    Return whether that was so, or never will be: nobody needs to look again.
    """
    if not _unnamed(names):
        return True
    if lost := not exact and _loses(payload):
        log.warning(
            "the model's arrays have no names, so BatchNorm's running statistics among them are "
            "compressed as weights are: give ArrayRecord(model.state_dict()), or "
            'Link(grid, exact=["3", "4"]) with their numbers'
        )
    return lost


def below_zero(layout: Layout, vector: Vector) -> bool:
    """Return whether one of BatchNorm's running variances is below zero."""
    return any((vector[start:stop] < 0).any() for start, stop in variances(layout))


def warn_of_variances(layout: Layout, vector: Vector) -> bool:
    """Warn of a model that a strategy has made, if so; return whether it was warned of."""
    if below := below_zero(layout, vector):
        log.warning(
            "the strategy has led one of BatchNorm's running variances below 0, and the model to "
            "NaN: it steps statistics as weights. Sheltered(strategy) keeps them out of its sight"
        )
    return below
