"""Holds replies for a ServerApp until all of their objects have arrived.

A node may first announce a reply, and then send its objects one by one, or stop sending. A
SuperLink hands out a reply as soon as the node has announced it. This module asks the SuperLink for
a reply when it is complete. Complete replies do not wait for incomplete ones. If a reply's objects
stop arriving, the reply is handed out without the missing objects. It then counts as a failure of
its node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

EXPIRES = 10.0  # seconds in which no object arrives and none is on its way
# In one look, the most missing objects of a reply that are asked for, and that may be absent.
MOST_LOOKED, MOST_ABSENT = 256, 16
ENOUGH = 1 << 28  # bytes of replies after which a response holds no further reply
FORGOTTEN = 3600.0  # seconds after which nobody waits for a reply


@dataclass
class Reply:
    """A reply that was not complete at the last look.

    `missing`: the ids of objects that have not arrived yet; `since`: when the last one arrived;
    `size`: bytes of those that have arrived.
    """

    run: int
    node: int
    missing: list[str]
    since: float
    size: int = 0


class IncompleteReplies:
    """The incomplete replies of all runs. `clock`: returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._replies: dict[str, Reply] = {}  # by the ids of the messages that they answer

    def without(
        self, run: int, asked: Iterable[str], state: Any, sends: Callable[[int], bool]
    ) -> list[str]:
        """Return the ids of a run's messages, without those whose replies are incomplete.

        A reply that will never be complete counts as complete. If the replies are large, the ids
        are a few: the next call returns the others. No node may announce a reply meanwhile.

        `state`: the SuperLink's; `sends`: returns whether the node with this id is sending an
        object now.
        """
        found, size, store, inbox = list[str](), 0, state.object_store, state.message_ins_store
        oldest, known = self._clock() - FORGOTTEN, self._replies.items()
        kept = {name: each for name, each in known if name in inbox and each.since > oldest}
        for message in asked:
            reply = kept.pop(message, None)
            name = state.message_ins_id_to_message_res_id.get(message)
            entry, announced = store.store.get(name), state.message_res_store.get(name)
            if reply is None and entry is not None and announced is not None:
                names = [*entry.child_object_ids, name]  # the tree of a reply is flat
                reply = Reply(run, announced.metadata.src_node_id, names, self._clock())
            if reply is not None:
                if not self._is_over(reply, store, sends):
                    kept[message] = reply
                    continue
                if announced is None:  # the SuperLink has dropped the reply of a slow node
                    state.delete_messages({message})
                size += reply.size
            found.append(message)
            if size > ENOUGH:
                break
        self._replies = kept
        return found

    def waits(self, run: int) -> bool:
        """Return whether a run has incomplete replies."""
        return any(each.run == run for each in self._replies.values())

    def _is_over(self, reply: Reply, store: Any, sends: Callable[[int], bool]) -> bool:
        """Look for missing objects of a reply; return whether to wait for no more objects.

        A look takes a limited time, because other replies wait for it. The next look continues
        after the names that this one has looked for.
        """
        absent, names = list[str](), iter(reply.missing[:MOST_LOOKED])
        for name in names:
            if (content := store.get(name)) is None:
                return True  # it will never arrive
            if content:
                reply.size, reply.since = reply.size + len(content), self._clock()
                continue
            absent.append(name)
            if len(absent) == MOST_ABSENT:
                break
        reply.missing = [*names, *reply.missing[MOST_LOOKED:], *absent]
        silent = self._clock() - reply.since >= EXPIRES
        return not reply.missing or (silent and not sends(reply.node))
