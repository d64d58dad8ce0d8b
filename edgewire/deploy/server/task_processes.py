"""Watches the processes of ServerApps on this machine.

Flower's SuperLink knows a process by its heartbeats alone. If it hears none for 30 seconds, it
starts another process, but a slow machine needs longer to import Flower. It ends a run 60 seconds
after the last heartbeat. These limits still hold for processes on other machines.
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

SILENT = 600.0  # seconds that a living process has until its first heartbeat
MOST_ENDS = 3  # processes that end before they begin; then the run has failed


class TaskProcesses:
    """Watches the process of each task (a run's ServerApp) of an in-memory SuperLink.

    `state`: the SuperLink's state, which calls this object from now on. `pause`: seconds between
    two looks at a process.
    """

    def __init__(self, state: Any, pause: float = 0.5) -> None:
        self._state, self._pause, self._claim = state, pause, state.claim_task
        self._ends = Counter[int]()  # task -> its processes that ended before they began
        state.claim_task = self.claim

    def claim(self, task: int) -> str | None:
        """Return the token for a new process of a task, as Flower does, and watch the process."""
        token: str | None = self._claim(task)
        if token is not None:
            threading.Thread(target=self._watch, args=(task, token), daemon=True).start()
        return token

    def _watch(self, task: int, token: str) -> None:
        """Keep a token valid while its process lives, and no longer."""
        process = None
        while (found := self._state.get_task_by_token(token)) is not None:
            if process is None:
                if process := process_with(token):
                    self._expire(task, token, SILENT)
            elif not _has(process, token):
                self._ends[task] += found.status.status != Status.RUNNING
                if self._ends[task] == MOST_ENDS:
                    said = f"the ServerApp's process ended {MOST_ENDS} times before it began"
                    self._state.finish_task(task, SubStatus.FAILED, f"{said}: out of memory?")
                self._expire(task, token, -1.0)
            elif found.status.status == Status.RUNNING:
                self._expire(task, token, SILENT)
            time.sleep(self._pause)

    def _expire(self, task: int, token: str, seconds: float) -> None:
        """Let a token expire `seconds` from now, if the task still has this token."""
        with self._state.lock_task_store:
            if (record := self._state.task_token_store.get(task)) and record.token == token:
                record.active_until = steady_clock.now() + timedelta(seconds=seconds)


def process_with(token: str) -> Path | None:
    """Return the folder in /proc of the process with this word on its command line, or None."""
    return next((each for each in Path("/proc").glob("[0-9]*") if _has(each, token)), None)


def _has(process: Path, token: str) -> bool:
    try:
        return token.encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
