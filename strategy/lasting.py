"""A run on nodes of its own that may be resumed: its lives, and which nodes go back with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from compression.flower.grids import GridWrapper, TimedGrid
from deploy.lives import Checkpoint, Lives, keeps, told


@dataclass
class LivesState:
    """`key`: the first life; each life's last checkpoint, by what was done; `keeping`: nodes."""

    key: int = 0
    checkpoints: list[tuple[int, int]] = field(default_factory=list)
    keeping: set[int] = field(default_factory=set)


class LastingNodes(GridWrapper):
    """A grid whose nodes outlive this process: each message says by which checkpoint they go back.

    `keeping`: the nodes that have said that they do (`deploy.lives`).
    """

    def __init__(self, grid: Grid | TimedGrid, life: int) -> None:
        super().__init__(grid)
        self._lives = Lives(life, life)
        self.keeping: set[int] = set()

    def state(self, done: int) -> LivesState:
        """Return what goes into a checkpoint of so much."""
        lives = self._lives.kept(done)
        return LivesState(
            lives.key, [(each.life, each.done) for each in lives.checkpoints], self.keeping
        )

    def load(self, state: LivesState) -> None:
        """Go on with a checkpoint's."""
        checkpoints = tuple(Checkpoint(*each) for each in state.checkpoints)
        self._lives = Lives(state.key, self._lives.life, checkpoints)
        self.keeping = state.keeping

    def kept(self, done: int) -> None:
        """Take note that a checkpoint of so much is on the disk."""
        self._lives = self._lives.kept(done)

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """See `TimedGrid`."""
        return super().push_messages(self._telling(messages), ttl)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """See `TimedGrid`."""
        return self._heard(super().pull_messages(message_ids))

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """See `TimedGrid`."""
        return self._heard(super().pull_before(message_ids, deadline))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """See `TimedGrid`."""
        return self._heard(super().send_and_receive(self._telling(messages), timeout=timeout))

    def _telling(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        for message in found:
            message.metadata.group_id = told(message.metadata.group_id, self._lives)
        return found

    def _heard(self, replies: Iterable[Message]) -> list[Message]:
        found = list(replies)
        self.keeping.update(
            reply.metadata.src_node_id for reply in found if keeps(reply.metadata.group_id)
        )
        return found
