"""Watches the processes of ServerApps on this machine.

Flower's SuperLink knows by heartbeats alone whether a ServerApp's process lives. A process has 30
seconds for its first heartbeat, and a slow machine needs longer to import Flower. The SuperLink
would then start another process, again and again. After the first heartbeat, a process may be
silent for 60 seconds, and the run of a process that was killed goes on for as long.

This module looks for the process on this machine. A living process may be silent for `SILENT`
seconds. The end of a process is seen at once. A process on another machine is not seen: for that
process Flower's own limits hold.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from flwr.common.constant import Status, SubStatus

from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.access import App, Scope, Send
from edgewire.deploy.server.node_registry import state_of

SILENT = 600.0  # seconds
MOST_ENDS = 3  # processes that end before they begin; then the run has failed
_LOOK = 0.5  # seconds between two looks at a process


class WatchedTasks:
    """Wraps a SuperLink's ASGI app: watches the processes of its in-memory state."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request; at the start of the SuperLink begin to watch."""
        if scope["type"] == "lifespan":
            TaskProcesses(state_of(scope)).install()
        await self._app(scope, receive, send)


class TaskProcesses:
    """The processes of a SuperLink's tasks; a task is a run's ServerApp.

    `state`: the SuperLink's state. `pause`: seconds between two looks at a process.
    """

    def __init__(self, state: Any, pause: float = _LOOK) -> None:
        self._state, self._pause = state, pause
        self._claim, self._heard = state.claim_task, state.acknowledge_task_heartbeat
        self._alive = dict[int, str]()  # task -> token, for each process that lives
        self._ends = Counter[int]()  # task -> its processes that ended before they began

    def install(self) -> None:
        """Let the state call this object for new processes and for heartbeats."""
        self._state.claim_task = self.claim
        self._state.acknowledge_task_heartbeat = self.heard

    def claim(self, task: int) -> str | None:
        """Return the token for a new process of a task, as Flower does, and watch the process."""
        token: str | None = self._claim(task)
        if token is not None:
            watch = threading.Thread(target=self._watch, args=(task, token), daemon=True)
            watch.start()
        return token

    def heard(self, task: int) -> bool:
        """Note a heartbeat of a task, as Flower does; return whether the task goes on."""
        known: bool = self._heard(task)
        if known and (token := self._alive.get(task)):
            self._expire(task, token, SILENT)
        return known

    def _watch(self, task: int, token: str) -> None:
        """Look at a task's process until the process ends, or until the token is invalid."""
        process = None
        while (found := self._state.get_task_by_token(token)) is not None:
            if process is None:
                process = process_with(token)
                if process is not None:
                    self._alive[task] = token
                    self._expire(task, token, SILENT)
            elif not _has(process, token):
                self._ended(task, token, found.status.status == Status.STARTING)
                continue
            time.sleep(self._pause)
        if self._alive.get(task) == token:
            del self._alive[task]

    def _ended(self, task: int, token: str, starting: bool) -> None:
        """Expire the token of an ended process: Flower then starts another, or ends the run."""
        self._ends[task] += starting
        if self._ends[task] >= MOST_ENDS:
            said = (
                f"the ServerApp's process ended {MOST_ENDS} times before it began: out of memory?"
            )
            self._state.finish_task(task, SubStatus.FAILED, said)
        self._expire(task, token, -1.0)

    def _expire(self, task: int, token: str, seconds: float) -> None:
        """Let a token expire `seconds` from now, if the task still has this token."""
        with self._state.lock_task_store:
            record = self._state.task_token_store.get(task)
            if record is not None and record.token == token:
                record.active_until = steady_clock.now() + timedelta(seconds=seconds)


def process_with(token: str) -> Path | None:
    """Return the folder in /proc of the process with this word on its command line, or None."""
    return next((each for each in Path("/proc").glob("[0-9]*") if _has(each, token)), None)


def _has(process: Path, token: str) -> bool:
    try:
        return token.encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
