"""Infers which updates a strategy has applied from the models that it sends next."""

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
    """What a node was given to train: the model's checksum, and the strategy's round."""

    model: bytes
    round: int | None  # None: the message says no round


@dataclass
class InferredAcksState:
    """What each node was given last, and the checksums of the last call's models."""

    given: dict[int, TrainedFrom] = field(default_factory=dict)
    last: set[bytes] = field(default_factory=set)


def name_of(model: Model) -> bytes:
    """Return a checksum of all of a model's values: of its vector, and of its native tensors."""
    own = (xxh3_64_digest(each.array.tobytes()) for each in model.own)
    return checksum(model.vector) + b"".join(own)


class InferredAcks:
    """Decides whether nodes' updates were applied, for strategies that do not report it.

    A node's update counts as applied when the node is next sent another model. It counts as not
    applied when the node is sent the same model again, or when any node is sent it in a later round
    of the strategy's: then the update's round has failed. The same model within one round says
    nothing, because a strategy may ask its nodes in batches.
    """

    def __init__(self, receipts: AckTracker, state: InferredAcksState | None = None) -> None:
        self._receipts = receipts
        self._state = InferredAcksState() if state is None else state

    def give(self, messages: Iterable[Message], models: Mapping[int, Model]) -> None:
        """Settle pending updates from these messages to train; note what the nodes are given.

        `models`: the messages' models by their contents' `id`.
        """
        asked = [m for m in messages if id(m.content) in models and trains(m)]
        names = {key: name_of(models[key]) for key in {id(m.content) for m in asked}}
        given = {
            m.metadata.dst_node_id: TrainedFrom(names[id(m.content)], server_round(m.content))
            for m in asked
        }
        if not given:
            return
        for node in self._receipts.pending:
            if node in given and node in self._state.given:
                new, old = given[node], self._state.given[node]
                again = new.round is None or new.round != old.round
                self._receipts.settle(node, applied=new.model != old.model or not again)
        newest = {each.model for each in given.values()}
        if newest & self._state.last:
            self._give_up(given)
        self._state.given |= given
        self._state.last = newest

    def forget(self, nodes: Iterable[int]) -> None:
        """Forget nodes that are gone."""
        for node in nodes:
            self._state.given.pop(node, None)

    def _give_up(self, given: Mapping[int, TrainedFrom]) -> None:
        """Settle updates of rounds that have failed as not applied."""
        latest = dict[bytes, int]()
        for each in given.values():
            latest[each.model] = max(each.round or 0, latest.get(each.model, 0))
        for node in self._receipts.pending:
            before = self._state.given.get(node)
            if before and before.round is not None and before.round < latest.get(before.model, 0):
                self._receipts.settle(node, applied=False)
