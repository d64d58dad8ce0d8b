"""Tracks which updates the server has applied to its model, or infers it from later models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message
from xxhash import xxh3_64_digest

from ...base import Indices, PayloadError
from ...codec import Codec
from ...coders.shared_context import SharedContext
from ...decoder import Update, decode_update
from ...layout import Layout
from ..headers import server_round, trains
from ..node.state import checksum
from ..tensor_split import Model


class Pending(NamedTuple):
    """A node's decoded update, which the strategy has neither applied nor discarded yet."""

    sequence: int
    indices: Indices | None  # None if the method never repeats indices


@dataclass
class AckTrackerState:
    """The state of an `AckTracker`; each dictionary's keys are node ids.

    `applied`: the sequence number of the node's last applied reply. `indices`: the indices of the
    entries in that reply. `pending`: the node's pending update. `forgot`: True if the state of some
    nodes was deleted; these nodes may come back.
    """

    applied: dict[int, int] = field(default_factory=dict)
    indices: dict[int, Indices] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    forgot: bool = False


OTHER_METHOD = "its payload is not of the method that this run's nodes have"
INDEX_BUDGET = 1 << 30  # the most bytes of stored indices, summed over all nodes


class AckTracker:
    """Tracks, at the server, which replies of nodes with a residual were applied.

    Such nodes number their replies (the sequence number). The server's next message to a node says
    which of the node's replies was applied last; the node adds later ones back to its residual. The
    indices of that reply are stored, if the method's next update may repeat them. If a node comes
    back after `nodes_left`, the first message does not say it, and the node adds nothing back.
    """

    def __init__(self, state: AckTrackerState | None = None, uplink: Codec | None = None) -> None:
        self._state = AckTrackerState() if state is None else state
        self._bytes = sum(each.nbytes for each in self._state.indices.values())
        self._uplink = uplink  # the nodes' codec; None: unknown

    def last_applied(self, node: int) -> int:
        """Return the sequence number of a node's last applied reply; 0 if none was applied."""
        return self._state.applied.get(node, 0)

    def unknown(self, node: int) -> bool:
        """Return whether it is unknown which of a node's replies were applied.

        Then it also records that none was, so that the next call for this node returns False.
        """
        if not self._state.forgot or node in self._state.applied:
            return False
        self._state.applied[node] = 0
        return True

    @property
    def pending(self) -> list[int]:
        """The ids of the nodes whose update was decoded, but not yet applied or discarded."""
        return list(self._state.pending)

    def decode(
        self,
        node: int,
        payload: bytes,
        sequence: int,
        layout: Layout,
        own: tuple[int, ...] = (),
        context: SharedContext | None = None,
    ) -> Update:
        """Decode a node's update; it is pending until `applied` or `resolve` is called.

        `layout`, `own`, `context`: as in `decode_update`. Raises PayloadError for a broken payload
        or one of another compression method, and for an update that was applied before, or repeats
        indices that are not stored here.
        """
        uplink = self._uplink
        if uplink is not None and not uplink.made(payload):
            raise PayloadError(OTHER_METHOD)
        if sequence and sequence <= self._state.applied.get(node, 0):
            raise PayloadError(f"its update {sequence} was applied already")
        self._state.pending.pop(node, None)
        before = self._state.indices.get(node)
        exact = None if uplink is None else uplink.exact_tensors(layout.without(own))
        update = decode_update(
            payload, layout, own=own, exact=exact, before=before, context=context
        )
        if sequence:
            repeats = (update if uplink is None else uplink).sparsifier.repeats
            self._state.pending[node] = Pending(sequence, update.selected if repeats else None)
        return update

    def pend(self, node: int, sequence: int) -> None:
        """Record an update that is not decoded alone, because it is part of a secure sum."""
        self._state.pending[node] = Pending(sequence, None)

    def resolve(self, node: int, *, applied: bool) -> None:
        """Record whether the strategy has applied the pending update of a node."""
        pending = self._state.pending.pop(node, None)
        if pending is not None and applied:
            self._state.applied[node], indices = pending
            if indices is not None:
                self._keep(node, indices)

    def _keep(self, node: int, indices: Indices) -> None:
        """Store the indices in a node's update; above INDEX_BUDGET bytes, delete the oldest."""
        kept = self._state.indices
        if (old := kept.pop(node, None)) is not None:
            self._bytes -= old.nbytes
        kept[node] = indices
        self._bytes += indices.nbytes
        while self._bytes > INDEX_BUDGET and len(kept) > 1:
            self._bytes -= kept.pop(next(iter(kept))).nbytes

    def nodes_left(self) -> None:
        """Record that the data of some nodes was deleted from the state (`forget_nodes`)."""
        self._bytes = sum(each.nbytes for each in self._state.indices.values())
        self._state.forgot = True

    def applied(self, nodes: Iterable[int]) -> None:
        """Record that the strategy has applied the updates of these nodes, and of no others."""
        for node in nodes:
            self.resolve(node, applied=True)
        self._state.pending.clear()


class TrainedFrom(NamedTuple):
    """The model (as a checksum) that a node got for training, and the round in which it got it."""

    model: bytes
    round: int | None  # None: the message holds no round


@dataclass
class InferredAcksState:
    """State of `InferredAcks`; `given`: by node id, the model that the node got last."""

    given: dict[int, TrainedFrom] = field(default_factory=dict)


def name_of(model: Model) -> bytes:
    """Return a checksum of all values of a model: its float32 vector and its other tensors."""
    own = (xxh3_64_digest(each.array.tobytes()) for each in model.own)
    return checksum(model.vector) + b"".join(own)


class InferredAcks:
    """Infers whether a strategy has applied nodes' updates, because Flower's strategies do not say.

    An update is pending until this is known. The next message to the node decides. The update
    counts as applied if that message holds another model, or the same model in the same round. It
    counts as not applied if that message holds the same model in another round, or without a round:
    then the update's round has failed. If any node gets the same model in a later round, all
    pending updates of the failed round count as not applied. Messages to other nodes in the same
    round decide nothing, because a strategy may send a round's messages in batches.
    """

    def __init__(self, acks: AckTracker, state: InferredAcksState | None = None) -> None:
        self._acks = acks
        self._state = InferredAcksState() if state is None else state

    def give(self, messages: Iterable[Message], models: Mapping[int, Model]) -> None:
        """Decide from these messages for training which pending updates the strategy has applied.

        `models`: the messages' models, by the `id` of the message's content.
        """
        asked = [m for m in messages if id(m.content) in models and trains(m)]
        names = {key: name_of(models[key]) for key in {id(m.content) for m in asked}}
        given = {
            m.metadata.dst_node_id: TrainedFrom(names[id(m.content)], server_round(m.content))
            for m in asked
        }
        latest = dict[bytes, int]()  # by model: the last round for which it is given now
        for each in given.values():
            latest[each.model] = max(each.round or 0, latest.get(each.model, 0))
        for node in self._acks.pending if given else ():
            old, new = self._state.given.get(node), given.get(node)
            if old is None:
                continue
            failed = old.round is not None and old.round < latest.get(old.model, 0)
            if new is not None and new.model == old.model:
                failed = failed or new.round is None or new.round != old.round
            if failed or new is not None:
                self._acks.resolve(node, applied=not failed)
        self._state.given |= given
