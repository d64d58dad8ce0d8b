"""Replies that a ServerApp has asked for, and of which some objects are still on their way.

A SuperLink hands out a reply once it has been announced, and its objects may come later, each by
itself, or never. Replies that are whole do not wait for others. One for which nothing comes any
more is handed on without its objects, which is that node's failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

EXPIRES = 10.0  # seconds without another object, and without one that is being sent
FORGOTTEN = 3600.0  # seconds after which nobody asks for a reply any more: its run is over


@dataclass
class Reply:
    """A reply, and what is there of it. `since`: when something of it came last."""

    message: Message
    tree: ObjectTree
    since: float
    objects: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


class IncompleteReplies:
    """The replies of all runs that are not whole yet. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._replies: dict[int, dict[str, Reply]] = {}  # by the run, and the reply's id

    def add(self, run: int, response: PullAppMessagesResponse) -> None:
        """Take what a SuperLink hands out: each reply once."""
        now = self._clock()
        messages, trees = response.messages_list, response.message_object_trees
        with self._lock:
            self._forget(now)
            for message, tree in zip(messages, trees, strict=True):
                names = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
                reply = Reply(message, tree, now, missing=names)
                self._replies.setdefault(run, {})[message.metadata.message_id] = reply

    def ready(
        self,
        run: int,
        asked: Collection[str],
        fetch: Callable[[str], bytes | None],
        sends: Callable[[int], bool],
    ) -> list[Reply]:
        """Return, and forget, the replies that are whole, and those of which no more will come.

        `asked`: the ids of the messages that they are to be replies to; `fetch`: returns an object,
        None while it is not there, and raises `LookupError` if it will never be; `sends`: whether a
        node is sending an object just now.
        """
        found, asked = list[Reply](), {*asked, ""}  # "": a message that is no reply
        with self._lock:
            for name, reply in list(self._replies.get(run, {}).items()):
                if reply.message.metadata.reply_to_message_id not in asked:
                    continue
                if self._complete(reply, fetch) or self._is_expired(reply, sends):
                    found.append(reply)
                    self._drop(run, name)
        return found

    def not_yet(self, run: int, asked: Iterable[str]) -> list[str]:
        """Return the ids to which no reply is on its way: of others Flower says they are gone."""
        with self._lock:
            there = {
                each.message.metadata.reply_to_message_id
                for each in self._replies.get(run, {}).values()
            }
        return [each for each in asked if each not in there]

    def waits(self, run: int) -> bool:
        """Return whether objects of a run's replies are on their way."""
        return bool(self._replies.get(run))

    def _complete(self, reply: Reply, fetch: Callable[[str], bytes | None]) -> bool:
        try:
            looked = {name: fetch(name) for name in reply.missing}
        except LookupError:
            return True
        came = {name: content for name, content in looked.items() if content is not None}
        if came:
            reply.objects |= came
            reply.missing = [name for name in reply.missing if name not in came]
            reply.since = self._clock()
        return not reply.missing

    def _is_expired(self, reply: Reply, sends: Callable[[int], bool]) -> bool:
        silent = self._clock() - reply.since >= EXPIRES
        return silent and not sends(reply.message.metadata.src_node_id)

    def _drop(self, run: int, name: str) -> None:
        self._replies[run].pop(name)
        if not self._replies[run]:
            del self._replies[run]

    def _forget(self, now: float) -> None:
        for run, replies in list(self._replies.items()):
            for name, reply in list(replies.items()):
                if now - reply.since > FORGOTTEN:
                    self._drop(run, name)


def parts_of_replies(replies: Iterable[Reply]) -> list[tuple[str, bytes]]:
    """Return replies as a SuperLink says them, with their objects, as named parts."""
    replies = list(replies)
    response = PullAppMessagesResponse(
        messages_list=[each.message for each in replies],
        message_object_trees=[each.tree for each in replies],
    )
    objects = {name: content for each in replies for name, content in each.objects.items()}
    return [("response", response.SerializeToString()), *objects.items()]
