"""A worker process: it answers the messages that its parent sends it, for nodes of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.app.metadata import Metadata

from .channel import Channel
from .errors import EngineError
from .host import Host, HostSpec
from .limits import Limits

WINDOW = 2  # messages a worker has at a time: one at work, one waiting at its door


def message_of(content: RecordDict, metadata: Metadata) -> Message:
    """Return a message with all of another one's metadata, as Flower's own transports make it."""
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def work(
    connection: Connection,
    others: list[Connection],
    folders: list[Path],
    names: tuple[str, str],
    spec: HostSpec,
    limits: Limits,
    index: int,
    states: Mapping[int, RecordDict],
) -> None:
    """Serve messages until the other end closes; runs in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # its app may start processes: a DataLoader's
    for other in others:  # inherited by fork: open ends would hide the parent's closing
        other.close()
    limits.apply(index)
    host, content = Host(spec), RecordDict()
    host.load(states)
    messages, replies = (Channel(connection, folders, name, WINDOW) for name in names)
    with contextlib.suppress(EOFError, OSError):
        while True:
            fresh, metadata, anew = messages.receive()
            if metadata is None:
                _tell(replies, host)
                continue
            content = content if fresh is None else fresh
            if anew:
                host.forget(metadata.dst_node_id)
            message = message_of(RecordDict(dict(content)), metadata)
            reply, has_state = host.answer(message)
            answer = reply.error if reply.has_error() else reply.content
            _reply(replies, metadata.message_id, answer, has_state)
    os._exit(0)  # no atexit work of the parent's in a forked child


def _reply(replies: Channel, message_id: str, content: Any, has_state: bool) -> None:
    """Send what was asked for; if there is no room for it, that is the parent's to say."""
    try:
        replies.send((message_id, content, has_state))
    except EngineError as error:
        replies.send((None, str(error), False))


def _tell(replies: Channel, host: Host) -> None:
    """Send what the nodes keep, or say that there is no memory for a copy of it."""
    try:
        _reply(replies, "", host.states, True)
    except MemoryError:
        replies.send((None, "no memory is left for a copy of what nodes keep", False))
