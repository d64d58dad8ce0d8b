"""Holds replies back from a ServerApp until all of their objects have arrived.

A node may first announce a reply, and then send its objects one by one, or stop sending. A
SuperLink hands out a reply as soon as the node has announced it. This module says which replies are
not to be asked for yet, because they are incomplete. Complete replies do not wait for incomplete
ones. If a reply's objects stop arriving, the reply is handed out without the missing objects. It
then counts as a failure of its node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

EXPIRES = 10.0  # seconds in which no object arrives and none is on its way
# In one look, the most missing objects of a reply that are asked for, and that may be absent.
MOST_LOOKED, MOST_ABSENT = 256, 16
ENOUGH = 1 << 28  # bytes of replies after which a response holds no further reply


@dataclass
class Arriving:
    """A reply of a run that is not handed out yet.

    `missing`: ids of objects; `since`: when the last object arrived; `size`: bytes that arrived.
    """

    run: int
    missing: list[str]
    since: float
    size: int = 0


class IncompleteReplies:
    """The incomplete replies of all runs. `clock`: returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._replies: dict[str, Arriving] = {}  # by their ids

    def late(
        self, run: int, asked: Iterable[str], state: Any, sends: Callable[[int], bool]
    ) -> set[str]:
        """Return the ids of messages whose replies are incomplete, and may become complete.

        If replies are large, also those of complete replies for which a response has no room.

        `asked`: ids of messages of this run. `state`: the SuperLink's. `sends`: returns whether the
        node with this id is sending an object now.
        """
        late, size = set[str](), 0
        with self._lock:
            for name in [name for name in self._replies if name not in state.message_res_store]:
                del self._replies[name]
            for message_id in dict.fromkeys(asked):
                name = state.message_ins_id_to_message_res_id.get(message_id, "")
                reply = state.message_res_store.get(name)
                if reply is None or reply.metadata.run_id != run or name not in state.object_store:
                    continue  # the SuperLink says what is wrong, if anything is
                if name not in self._replies:
                    tree = iterate_object_tree(state.object_store.get_object_tree(name))
                    names = list(dict.fromkeys(each.object_id for each in tree))
                    self._replies[name] = Arriving(run, names, self._clock())
                arriving = self._replies[name]
                ready = self._complete(arriving, state.object_store) or (
                    self._clock() - arriving.since >= EXPIRES
                    and not sends(reply.metadata.src_node_id)
                )
                if ready and size <= ENOUGH:
                    size += arriving.size
                    del self._replies[name]
                else:
                    late.add(message_id)
        return late

    def waits(self, run: int) -> bool:
        """Return whether a run has incomplete replies."""
        return any(each.run == run for each in list(self._replies.values()))  # never waits

    def _complete(self, reply: Arriving, store: Any) -> bool:
        """Look for some missing objects of a reply; return whether to wait for no more objects.

        A look takes a limited time, because other replies wait for it. The next look continues
        after the names that this one has looked for.
        """
        absent, names = list[str](), iter(reply.missing[:MOST_LOOKED])
        for name in names:
            content: bytes | None = store.get(name)
            if content is None:  # it will never arrive
                return True
            if content:
                reply.size, reply.since = reply.size + len(content), self._clock()
                continue
            absent.append(name)
            if len(absent) == MOST_ABSENT:
                break
        reply.missing = [*names, *reply.missing[MOST_LOOKED:], *absent]
        return not reply.missing
