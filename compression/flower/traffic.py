"""What crossed the network, counted; and replies: which are of use, and who is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import cast

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from ..layout import Layout
from ..payload import describe
from ..registry import get
from ..stages import PayloadError, Quantizer
from .arrays import STYPE, Vector, records
from .form import below_zero
from .notes import HEALS

log = getLogger("edgewire")


@dataclass
class Traffic:
    """Counters of a run. Bytes are lengths of payloads that were put into messages.

    `*_float32`: the bytes of the same content as Flower sends it without compression, one Array a
    tensor, in the model's own types (float32, as a rule).
    """

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_float32: int = 0
    downlink_bytes_float32: int = 0
    client_updates: int = 0
    failures: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dict(vars(self))


def flower_bytes(arrays: ArrayRecord) -> int:
    """Return the bytes of a model as Flower sends it: of the very Arrays, in their own types."""
    return sum(len(array.data) for array in arrays.values())


def reason_of(reply: Message) -> str:
    """Return the last line of an error's reason: of a traceback, what was raised."""
    lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
    return lines[-1]


HINTS = {
    STYPE: "the ClientApp was handed a payload: give it mods=[Uplink(...)], before any other mod",
    "Uplink": "give the ClientApp mods=[Uplink(...)], before any other mod",
    "_mod expects": "put Uplink before any other mod",
    "ArrayRecord": "a reply must hold one ArrayRecord, the model, and one MetricRecord",
}


class Course:
    """What becomes of the nodes' replies: counted and named, and the run given up if for nothing.

    `patience`: so many rounds in a row with replies of which not one could be used. A round in
    which nobody has answered is not among them (a link that is down comes back), nor one after
    which nodes get the model whole again.
    """

    def __init__(self, traffic: Traffic, patience: int) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise ValueError(f"patience must be a number of rounds, at least 1, not {patience!r}")
        self._traffic, self._patience = traffic, patience
        self._reasons: list[str] = []  # why replies of this round were left out
        self._hopeless = 0  # rounds in a row without one that could be used
        self._asked = 0

    def begin_round(self, asked: int) -> None:
        """Begin a round in which so many nodes were asked."""
        self._asked += asked
        self._reasons.clear()

    def leave_out(self, server_round: int, node: int, reason: str) -> None:
        """Count a node that is left out, and name it."""
        self._traffic.failures += 1
        self._reasons.append(reason)
        log.warning("round %d: node %d left out: %s", server_round, node, reason)

    def end_round(self, server_round: int, used: int, answers: int) -> None:
        """Count what was used. Raises `PayloadError` if for too long nothing was."""
        self._traffic.client_updates += used
        heals = any(HEALS in reason for reason in self._reasons)
        self._hopeless = 0 if used or heals else self._hopeless + bool(answers)
        if self._hopeless >= self._patience:
            raise PayloadError(f"round {server_round}: {nobody_usable(self._reasons, answers)}")

    def end(self) -> None:
        """Raise `PayloadError` if nodes were asked, and not one update was ever used."""
        if self._asked and not self._traffic.client_updates:
            raise PayloadError("no node has answered: the model is as it was")


def nobody_usable(reasons: Iterable[str], answers: int) -> str:
    """Return one line on a round of which no reply could be used: why, and what to do."""
    reason = Counter(reasons).most_common(1)[0][0]
    hint = next((hint for sign, hint in HINTS.items() if sign in reason), "")
    return f"not one of {answers} replies could be used: {reason}{hint and '; ' + hint}"


log = getLogger("edgewire")


def weight_of(content: RecordDict, key: str) -> float:
    """Return a node's weight.

    Raises `PayloadError` for what would make the wrapped strategy give up the whole round.
    """
    metrics = records(content, MetricRecord)
    if len(metrics) != 1:
        raise PayloadError("a reply must hold one MetricRecord")
    return _usable_weight(metrics[0][1].get(key), key)


def _usable_weight(weight: object, key: str) -> float:
    if not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise PayloadError(f"{key} must be a positive number, not {weight!r}")
    return float(weight)


def expect_weight(content: RecordDict, key: str) -> None:
    """Raise `PayloadError` for a weight, if there is one, that a strategy cannot divide by."""
    for _, metrics in records(content, MetricRecord):
        if key in metrics:
            _usable_weight(metrics[key], key)


def unlike(replies: Sequence[Message], *, train: bool) -> dict[int, str]:
    """Return which replies to messages alike are not like most, by `id`, and why.

    Of replies to train those without arrays, if there are any with.
    """
    found, left = dict[int, str](), list(replies)
    with_arrays = [reply for reply in replies if records(reply.content, ArrayRecord)]
    if train and with_arrays:
        left, kept = with_arrays, set(map(id, with_arrays))
        found = {id(r): "a reply must hold one ArrayRecord" for r in replies if id(r) not in kept}
    kinds = [_kinds(reply.content) for reply in left]
    usual = Counter(kinds).most_common(1)
    reason = "its records or metrics have other names or lengths than the other nodes'"
    return found | {
        id(r): reason for r, kind in zip(left, kinds, strict=True) if kind != usual[0][0]
    }


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


def warn_of_variances(layout: Layout, vector: Vector) -> bool:
    """Warn of a model that a strategy has made, if so; return whether it was warned of."""
    if below := below_zero(layout, vector):
        log.warning(
            "the strategy has led one of BatchNorm's running variances below 0, and the model to "
            "NaN: it steps statistics as weights. Sheltered(strategy) keeps them out of its sight"
        )
    return below
