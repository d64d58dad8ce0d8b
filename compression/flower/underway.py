"""What the server remembers of the messages under way, and which replies to them are not alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flwr.app import Message

from ..layout import Layout
from .form import Form, Model
from .traffic import unlike


class Asked(NamedTuple):
    """What the server remembers of a message under way."""

    node: int
    number: int
    train: bool
    form: Form
    start: Model  # what the node's update starts from
    plain_bytes: int


class Underway:
    """Messages that were sent with a model in them, until they are answered."""

    def __init__(self) -> None:
        self._sent: dict[str, Asked] = {}  # by the message's id

    def add(self, messages: Iterable[Message], sent: Iterable[Asked | None]) -> list[str]:
        """Remember messages that were sent, by the ids they have got; return these.

        A grid leaves out a message to a node that is gone, and may return no id for it.
        """
        ids = [message.metadata.message_id for message in messages]
        self._sent |= {i: each for i, each in zip(ids, sent, strict=True) if each is not None}
        return ids

    def asked(self, reply: Message) -> Asked | None:
        """Return what is known of the message that a reply answers."""
        return self._sent.get(reply.metadata.reply_to_message_id)

    def take(self, message_id: str) -> Asked | None:
        """Return what is known of a message, and forget it."""
        return self._sent.pop(message_id, None)


def odd_ones(replies: Sequence[Message], asked: Sequence[Asked | None]) -> dict[int, str]:
    """Return which replies are not like most others, by `id`, and why.

    Only those to messages of one kind with the same tensors are compared.
    """
    groups: dict[tuple[bool, Layout], list[Message]] = {}
    for reply, sent in zip(replies, asked, strict=True):
        if sent is not None and not reply.has_error():
            groups.setdefault((sent.train, sent.form.whole), []).append(reply)
    found = dict[int, str]()
    for (train, _), group in groups.items():
        found |= unlike(group, train=train)
    return found


def used(replies: Sequence[Message], asked: Sequence[Asked | None]) -> int:
    """Return how many replies hold an update that can be used."""
    pairs = zip(replies, asked, strict=True)
    return sum(sent is not None and sent.train and not r.has_error() for r, sent in pairs)
