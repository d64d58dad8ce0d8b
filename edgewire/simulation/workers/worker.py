"""A worker process, which answers its parent's messages for the nodes that it hosts."""

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

from flwr.app import Error, Message, RecordDict
from flwr.app.metadata import Metadata

from edgewire.compression.flower.records import made_message
from edgewire.machine.errors import EngineError
from edgewire.simulation.workers.channel import Channel
from edgewire.simulation.workers.limits import Limits
from edgewire.simulation.workers.node_host import NodeHost, NodeHostSpec, raised

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PARENT_LOOK_SECONDS = 0.5  # between two checks whether the parent has ended
WINDOW = 2  # messages that a worker has at a time: the current one and the next one


def message_of(content: RecordDict | Error, metadata: Metadata) -> Message:
    """Return a message with exactly this metadata, as Flower's transports make it."""
    metadata.delivered_at = ""  # Flower's constructor sets it too
    if isinstance(content, Error):
        return made_message(metadata, None, content)
    return made_message(metadata, content)


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
    """Answer messages in a worker process, until the other end closes the connection."""
    ignore_stops()
    end_with_parent()
    # A daemon may not start processes, for example those of a DataLoader.
    multiprocessing.current_process().daemon = False
    # While these connections, inherited by fork, are open, no worker notices the parent's end.
    for other in others:
        other.close()
    # The app's forked processes must not keep the connection open either.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=connection.close)
    limits.apply(index)
    host, content = NodeHost(spec), RecordDict()
    host.load(states)
    messages, replies = (Channel(connection, folders, name, WINDOW) for name in names)
    with contextlib.suppress(EOFError, OSError):
        while True:
            if (together := messages.receive()) is None:
                _reply(replies, True, host.states, True)
                continue
            for fresh, metadata, anew in together:
                content = content if fresh is None else fresh
                if anew:
                    host.forget(metadata.dst_node_id)
                reply, has_state = host.answer(message_of(content.copy(), metadata))
                answer = reply.error if reply.has_error() else reply.content
                _reply(replies, reply.metadata, answer, has_state)
    os._exit(0)  # a forked child must not run the parent's atexit handlers


def ignore_stops() -> None:
    """Ignore stop signals: the parent ends its workers after it has written a checkpoint.

    A shell, `timeout` and a terminal send a signal to the whole process group. So a worker leaves
    this group, together with the processes of its app. systemd and Slurm send a signal to every
    process. So a worker installs a handler that does nothing. The handler is not `SIG_IGN`, because
    programs that the app executes would inherit `SIG_IGN`. A process that the app forks, for
    example for a DataLoader, gets the default handlers back. Otherwise nothing could end it.
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
    """Block stop signals in this thread (`SIG_BLOCK`), or unblock them (`SIG_UNBLOCK`).

    A process inherits its parent's signal mask, so no stop signal reaches a worker before it calls
    `ignore_stops`.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(how, STOPS)


def _hear_stops() -> None:
    """Restore the default handlers in a forked process. A signal since the fork then ends it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    hold_stops(signal.SIG_UNBLOCK)


def end_group(worker: int) -> None:
    """Send SIGTERM to the processes that a worker's app has started. The worker ignores SIGTERM.

    It does not send SIGKILL: Python's resource tracker ignores SIGTERM, and must still clean up
    after the other processes.
    """
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # no such group: the worker has not made it yet
            os.killpg(worker, signal.SIGTERM)


def end_with_parent() -> None:
    """End this process soon after its parent has ended, even while it answers a message."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOK_SECONDS)
        end_group(os.getpid())
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _reply(replies: Channel, told: Metadata | bool, content: Any, has_state: bool) -> None:
    """Send a reply or, with `told` True, the nodes' states to the parent.

    If they have no room, send None and the text of an error instead. A reply that cannot be pickled
    becomes an error reply.
    """
    try:
        replies.send((told, content, has_state))
    except EngineError as error:
        replies.send((None, str(error), False))
    except OSError:
        raise  # the parent has ended
    except Exception as error:  # objects of the app's own may raise anything
        reason = f"what the node sends cannot be sent: {type(error).__name__}: {error}"
        failed = (None, reason) if told is True else (told, raised(reason))
        replies.send((*failed, has_state))
