"""Holds replies for a ServerApp until all of their objects have arrived.

A node may first announce a reply, and then send its objects one by one, or stop sending. A
SuperLink hands out a reply as soon as the node has announced it. This module hands out a reply when
it is complete. Complete replies do not wait for incomplete ones. If a reply's objects stop
arriving, the reply is handed out without the missing objects. It then counts as a failure of its
node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

EXPIRES = 10.0  # seconds in which no object arrives and none is on its way
# In one look, the most missing objects of a reply that are asked for, and that may be absent.
MOST_LOOKED, MOST_ABSENT = 256, 16
ENOUGH = 1 << 28  # bytes of replies after which a response holds no further reply
FORGOTTEN = 3600.0  # seconds after which a reply is dropped, because its run must be over


@dataclass
class Reply:
    """A reply and the objects that have arrived. `since`: when the last object arrived."""

    run: int
    message: Message
    tree: ObjectTree
    since: float
    objects: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


class IncompleteReplies:
    """The incomplete replies of all runs. `clock`: returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._replies: dict[str, Reply] = {}  # by their ids

    def add(self, run: int, response: PullAppMessagesResponse) -> None:
        """Add the replies in a SuperLink's response. A SuperLink hands out each reply only once."""
        now = self._clock()
        messages, trees = response.messages_list, response.message_object_trees
        with self._lock:
            for name, each in list(self._replies.items()):
                if now - each.since > FORGOTTEN:
                    del self._replies[name]
            for message, tree in zip(messages, trees, strict=True):
                names = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
                reply = Reply(run, message, tree, now, missing=names)
                self._replies[message.metadata.message_id] = reply

    def ready(
        self,
        run: int,
        asked: Collection[str],
        fetch: Callable[[str], bytes | None],
        sends: Callable[[int], bool],
    ) -> list[Reply]:
        """Remove and return complete replies, and replies that will never be complete.

        They are a few if they are large: the next call returns the others.

        `asked`: return only replies to messages with these ids. `fetch`: returns an object, or None
        before the object has arrived; raises `LookupError` if it will never arrive. `sends`:
        returns whether the node with this id is sending an object now.
        """
        found, size = list[Reply](), 0
        asked = {*asked, ""}  # "": for a message that is no reply
        with self._lock:
            for name, reply in list(self._replies.items()):
                if reply.run != run or reply.message.metadata.reply_to_message_id not in asked:
                    continue
                if self._complete(reply, fetch) or self._is_expired(reply, sends):
                    found.append(reply)
                    del self._replies[name]
                    size += sum(map(len, reply.objects.values()))
                    if size > ENOUGH:
                        break
        return found

    def not_yet(self, run: int, asked: Iterable[str]) -> list[str]:
        """Return the ids of messages whose replies are not held here.

        Only these messages may be asked of Flower. It has handed out the other replies already, so
        it would report an error for their messages.
        """
        with self._lock:
            there = {
                each.message.metadata.reply_to_message_id
                for each in self._replies.values()
                if each.run == run
            }
        return [each for each in asked if each not in there]

    def waits(self, run: int) -> bool:
        """Return whether a run has incomplete replies."""
        return any(each.run == run for each in list(self._replies.values()))  # never waits

    def _complete(self, reply: Reply, fetch: Callable[[str], bytes | None]) -> bool:
        """Fetch some missing objects of a reply; return whether to wait for no more objects.

        A look takes a limited time, because other replies wait for it. The next look continues
        after the names that this one has looked for.
        """
        absent, names = list[str](), iter(reply.missing[:MOST_LOOKED])
        try:
            for name in names:
                if (content := fetch(name)) is not None:
                    reply.objects[name], reply.since = content, self._clock()
                    continue
                absent.append(name)
                if len(absent) == MOST_ABSENT:
                    break
        except LookupError:
            return True
        reply.missing = [*names, *reply.missing[MOST_LOOKED:], *absent]
        return not reply.missing

    def _is_expired(self, reply: Reply, sends: Callable[[int], bool]) -> bool:
        silent = self._clock() - reply.since >= EXPIRES
        return silent and not sends(reply.message.metadata.src_node_id)


def parts_of_replies(replies: Iterable[Reply]) -> list[tuple[str, bytes]]:
    """Return replies and their objects as the parts of a bundle, each (name, content)."""
    replies = list(replies)
    response = PullAppMessagesResponse(
        messages_list=[each.message for each in replies],
        message_object_trees=[each.tree for each in replies],
    )
    objects = {name: content for each in replies for name, content in each.objects.items()}
    return [("response", response.SerializeToString()), *objects.items()]
