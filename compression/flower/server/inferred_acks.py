"""Infers which updates a strategy has applied from the models that the strategy sends next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message
from xxhash import xxh3_64_digest

from ..acks import AckTracker
from ..headers import server_round, trains
from ..node.state import checksum
from ..tensor_split import Model


class TrainedFrom(NamedTuple):
    """The model (as a checksum) that a node got for training, and the round in which it got it."""

    model: bytes
    round: int | None  # None: the message holds no round


@dataclass
class InferredAcksState:
    """State of `InferredAcks`.

    `given`: by node id, the model that the node got last. `last`: the checksums of the models in
    the last call of `give`.
    """

    given: dict[int, TrainedFrom] = field(default_factory=dict)
    last: set[bytes] = field(default_factory=set)


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

        The messages' models are then stored for the next call. `models`: the messages' models, by
        the `id` of the message's content.
        """
        asked = [m for m in messages if id(m.content) in models and trains(m)]
        names = {key: name_of(models[key]) for key in {id(m.content) for m in asked}}
        given = {
            m.metadata.dst_node_id: TrainedFrom(names[id(m.content)], server_round(m.content))
            for m in asked
        }
        if not given:
            return
        for node in self._acks.pending:
            if node in given and node in self._state.given:
                new, old = given[node], self._state.given[node]
                again = new.round is None or new.round != old.round
                self._acks.resolve(node, applied=new.model != old.model or not again)
        newest = {each.model for each in given.values()}
        if newest & self._state.last:
            self._give_up(given)
        self._state.given |= given
        self._state.last = newest

    def forget(self, nodes: Iterable[int]) -> None:
        """Delete the state of nodes that have left the run."""
        for node in nodes:
            self._state.given.pop(node, None)

    def _give_up(self, given: Mapping[int, TrainedFrom]) -> None:
        """Record that the pending updates of failed rounds were not applied.

        `given`: by node, the model and round of its message. A round has failed if its model is
        sent again in a later round.
        """
        latest = dict[bytes, int]()
        for each in given.values():
            latest[each.model] = max(each.round or 0, latest.get(each.model, 0))
        for node in self._acks.pending:
            before = self._state.given.get(node)
            if before and before.round is not None and before.round < latest.get(before.model, 0):
                self._acks.resolve(node, applied=False)
