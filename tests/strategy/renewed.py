"""A grid whose nodes leave and return with another id, as SuperNodes without keys do."""

import random
from collections.abc import Iterable, Sequence
from itertools import count

from flwr.app import Message
from flwr.serverapp import Grid

from edgewire.compression.flower.timed_grid import GridWrapper


class Renewed(GridWrapper):
    """A grid in which a share of the nodes gets new ids each time the server pulls replies.

    Messages to an old id are never answered. `ids` is the number of ids so far.
    """

    def __init__(self, grid: Grid, share: float, seed: int = 0) -> None:
        super().__init__(grid)
        self._share, self._draw, self._numbers = share, random.Random(seed), count(1)
        self._nodes = {next(self._numbers): node for node in super().get_node_ids()}
        self._sent = dict[str, int]()  # message -> the id that it was sent to
        self.ids = len(self._nodes)

    @property
    def next_change(self) -> None:
        """Return None: it is unknown when the next node appears."""

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the present nodes."""
        return sorted(self._nodes)

    def push_messages(self, messages: Iterable[Message], ttl: float = float("inf")) -> list[str]:
        """Send the messages to present nodes; drop the messages to absent nodes."""
        made = list[str]()
        for message in messages:
            about = message.metadata
            if about.dst_node_id not in self._nodes:
                made.append(f"gone {next(self._numbers)}")
                continue
            node, kind = self._nodes[about.dst_node_id], about.message_type
            sent = Message(message.content, node, kind, group_id=about.group_id)
            (message_id,) = super().push_messages([sent], ttl)
            self._sent[message_id] = about.dst_node_id
            made.append(message_id)
        return made

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Return replies of present nodes; then give new ids to a share of the nodes."""
        found = super().pull_before(message_ids, deadline)
        kept = [m for m in found if self._sent.pop(m.metadata.reply_to_message_id) in self._nodes]
        gone = int(self._share * len(self._nodes) + self._draw.random())
        for node in self._draw.sample(list(self._nodes), gone):
            self._nodes[next(self._numbers)] = self._nodes.pop(node)
            self.ids += 1
        return kept
