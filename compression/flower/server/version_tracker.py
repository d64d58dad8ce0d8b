"""Tracks which version of the server's model each node has, and describes model updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flwr.app import ArrayRecord

from ...coders.shared_context import SharedContext
from ..replica import INITIAL_VERSION
from ..tensor_split import Model


class ModelUpdate(NamedTuple):
    """The payloads that bring a node to the newest model, and the fields of their header."""

    arrays: ArrayRecord  # one Array per payload
    header: Mapping[str, Any]  # fields of `DownlinkHeader`: version, base, rates, checksum
    received: Model | None = None  # the node's model after decoding; None if it was not computed


class ModelSync(Protocol):
    """Brings nodes to the newest model by differences of versions or by the server's steps.

    `skips`: True if a node ignores the steps that it has already applied. Then the server may send
    a step again before the node has confirmed it.
    """

    skips: bool

    def knows(self, version: int) -> bool:
        """Return whether a model update can begin at this version of the model."""

    def starts_from_seed(self, *, new: bool) -> bool:
        """Return whether a model update can begin at version 0, the model before training.

        `new`: whether the node has got no version so far.
        """

    def context(self, version: int | None) -> SharedContext | None:
        """Return the context of index sets that a node at a version knows; None for none."""

    def model_update(self, base: int | None) -> ModelUpdate:
        """Return the payloads that bring nodes from the version `base` to the newest model.

        None: the node has no version. `UNHEARD`: it will not confirm one either.
        """


UNHEARD = -1  # `base` for a node that never replies
SILENT = 2  # after SILENT models without a reply the server assumes that the node never replies


@dataclass
class VersionTrackerState:
    """State of `VersionTracker`; each dictionary's keys are node ids.

    `has`: the version of the model that the node confirmed last. `sent`: the version that the node
    should confirm next. `unheard`: how many versions the server has sent to the node since the node
    last confirmed one. `not_from_seed`: the nodes that the server no longer sends changes of the
    model that they make from the run's seed.
    """

    has: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    unheard: dict[int, int] = field(default_factory=dict)
    not_from_seed: set[int] = field(default_factory=set)


class VersionTracker:
    """Tracks which version of the server's model each node has confirmed in a reply.

    A node without a confirmed version gets the whole model. If `from_seed` is True, nodes make the
    model before training (version 0) from the run's seed. Then a node without a confirmed version
    gets the changes since version 0, until it has replied with an error.
    """

    def __init__(
        self, sync: ModelSync, state: VersionTrackerState | None = None, *, from_seed: bool = False
    ) -> None:
        self.sync = sync
        self._state = VersionTrackerState() if state is None else state
        self._from_seed = from_seed

    def base_of(self, node: int) -> int | None:
        """Return the version from which the server sends a node a difference.

        None: the node gets the whole model. `UNHEARD`: so does a node that got `SILENT` models or
        more, and has replied to none of them.
        """
        base = self._state.has.get(node)
        if base is not None and self.sync.knows(base):
            return base
        seeded = self._from_seed and node not in self._state.not_from_seed
        new = base is None and node not in self._state.unheard
        if seeded and self.sync.starts_from_seed(new=new):
            return INITIAL_VERSION
        silent = self._state.unheard.get(node, 0) >= SILENT and not self.sync.skips
        return UNHEARD if silent else None

    def send(self, node: int, model_update: ModelUpdate) -> None:
        """Record that the server sends a model update to a node."""
        version = model_update.header.get("version")
        if not self.sync.skips:
            self._state.has.pop(node, None)  # its version is unknown until it replies
        if version is not None:
            self._state.sent[node] = version
            self._state.unheard[node] = self._state.unheard.get(node, 0) + 1

    def confirm(self, node: int, version: int | None) -> None:
        """Record that a node has a version of the model, if that was the last one sent to it."""
        sent = self._state.sent.pop(node, None)
        if sent is not None and version == sent:
            self._state.has[node] = sent
            self._state.unheard.pop(node, None)

    def invalidate(self, node: int) -> None:
        """Record that a node's version of the model is unknown: it gets the whole model next."""
        self._state.has.pop(node, None)
        self._state.sent.pop(node, None)
        if self._from_seed:
            self._state.not_from_seed.add(node)

    @property
    def in_flight(self) -> set[int]:
        """The versions that were sent to nodes, which have not confirmed them yet."""
        return {*self._state.sent.values()}

    @property
    def held(self) -> set[int]:
        """The versions that nodes have confirmed, and those that were sent to them."""
        return {*self._state.has.values(), *self._state.sent.values()}
