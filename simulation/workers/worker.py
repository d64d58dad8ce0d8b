"""A worker process: it answers the messages that its parent sends it, for nodes of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.app.metadata import Metadata

from ..errors import EngineError
from .channel import Channel
from .limits import Limits
from .node_host import NodeHost, NodeHostSpec

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PARENT_LOOK_SECONDS = 0.5  # between looks whether the parent is there; `getppid` costs nothing
WINDOW = 2  # messages a worker has at a time: one at work, one waiting at its door


def message_of(content: RecordDict, metadata: Metadata) -> Message:
    """Return a message with all of another one's metadata, as Flower's own transports make it."""
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def work(
    connection: Connection,
    others: list[Connection],
    folders: list[Path],
    names: tuple[str, str],
    spec: NodeHostSpec,
    limits: Limits,
    index: int,
    states: Mapping[int, RecordDict],
) -> None:
    """Serve messages until the other end closes; runs in a worker process."""
    ignore_stops()
    end_with_parent()
    multiprocessing.current_process().daemon = False  # its app may start processes: a DataLoader's
    for other in others:  # inherited by fork: open ends would hide the parent's closing
        other.close()
    if hasattr(os, "register_at_fork"):  # nor may what its app forks hide this one's end
        os.register_at_fork(after_in_child=connection.close)
    limits.apply(index)
    host, content = NodeHost(spec), RecordDict()
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


def ignore_stops() -> None:
    """Leave signals to stop to the parent: it ends its workers once a checkpoint is written.

    A shell, `timeout` and a terminal signal the whole process group: a worker leaves it, and with
    it what its app starts. systemd and Slurm signal every process: a handler that does nothing is
    for them. It is no `SIG_IGN`, which programs that the app executes would inherit; a process that
    the app forks (a DataLoader's, a pool's) gets the default back, or nobody could end it.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    for number in STOPS:
        signal.signal(number, lambda number, frame: None)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=partial(hold_stops, signal.SIG_BLOCK),
            after_in_parent=partial(hold_stops, signal.SIG_UNBLOCK),
            after_in_child=_hear_stops,
        )
    hold_stops(signal.SIG_UNBLOCK)


def hold_stops(how: int) -> None:
    """Hold signals to stop back (`SIG_BLOCK`), or let them in again: of this thread.

    A process starts with its parent's mask, so nothing reaches a worker before `ignore_stops` has.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(how, STOPS)


def _hear_stops() -> None:
    """Give a forked process the default back; what came since the fork was held, and ends it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    hold_stops(signal.SIG_UNBLOCK)


def end_group(worker: int) -> None:
    """Ask what a worker's app has started to end; the worker itself does not hear it.

    It is no SIGKILL: a resource tracker, which ignores this, has to clean up after the others.
    """
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # there is no such group: the worker has just begun
            os.killpg(worker, signal.SIGTERM)


def end_with_parent() -> None:
    """End this process soon after its parent, even in the middle of a message."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOK_SECONDS)
        end_group(os.getpid())
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _reply(replies: Channel, message_id: str, content: Any, has_state: bool) -> None:
    """Send what was asked for; if there is no room for it, that is the parent's to say."""
    try:
        replies.send((message_id, content, has_state))
    except EngineError as error:
        replies.send((None, str(error), False))


def _tell(replies: Channel, host: NodeHost) -> None:
    """Send what the nodes keep, or say that there is no memory for a copy of it."""
    try:
        _reply(replies, "", host.states, True)
    except MemoryError:
        replies.send((None, "no memory is left for a copy of what nodes keep", False))
