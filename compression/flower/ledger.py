"""Which version of the model each node has, and what brings it to the newest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flwr.app import ArrayRecord

from .form import Model


class Parcel(NamedTuple):
    """What a message carries of the model."""

    arrays: ArrayRecord  # of payloads
    note: Mapping[str, Any]  # fields of `ToNode`: version, base, rates, checksum
    size: int  # bytes of all payloads
    received: Model | None = None  # what the node then has, where the way has worked it out


class Way(Protocol):
    """How a node is brought to the newest version: by differences, or by the steps that it lacks.

    `skips`: a node leaves out what it has already, so that it can be sent the same again before
    anybody knows whether it has read it.
    """

    skips: bool

    def knows(self, version: int) -> bool:
        """Return whether a parcel can build on this version."""

    def parcel(self, base: int | None) -> Parcel:
        """Return what nodes of version `base` get (None: of none); one object for all of them."""


@dataclass
class LedgerState:
    """By node: the version it confirmed last, and the one that it should confirm."""

    has: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)


class Ledger:
    """What nodes have said that they have; a node of which nobody knows gets the model whole."""

    def __init__(self, way: Way, state: LedgerState | None = None) -> None:
        self.way = way
        self._state = LedgerState() if state is None else state

    def base_of(self, node: int) -> int | None:
        """Return the version on which a message to the node can build; None: on none."""
        base = self._state.has.get(node)
        return base if base is not None and self.way.knows(base) else None

    def send(self, node: int, parcel: Parcel) -> None:
        """Note what goes to a node."""
        version = parcel.note.get("version")
        if not self.way.skips:
            self._state.has.pop(node, None)  # until it answers nobody knows which it has
        if version is not None:
            self._state.sent[node] = version

    def confirm(self, node: int, version: int | None) -> None:
        """Note which version a node says it has, if it is the one it was sent."""
        sent = self._state.sent.pop(node, None)
        if sent is not None and version == sent:
            self._state.has[node] = sent

    def lose(self, node: int) -> None:
        """Note that nobody knows what a node has: it gets the model whole next."""
        self._state.has.pop(node, None)
        self._state.sent.pop(node, None)

    @property
    def held(self) -> set[int]:
        """The versions that nodes have, or may have soon."""
        return {*self._state.has.values(), *self._state.sent.values()}
