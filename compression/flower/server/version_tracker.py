"""Tracks which version of the server's model each node has."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..replica import INITIAL_VERSION
from .delta_sync import UNHEARD, DeltaSync, ModelUpdate
from .step_log_sync import StepLogSync

ModelSync = DeltaSync | StepLogSync
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
