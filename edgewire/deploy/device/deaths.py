"""Counts the deaths of a node's process during a message, so that the node gives the message up.

A message may end the process: it needs too much memory, or a library crashes. It is on disk, so a
restarted process takes it up again. After `MOST` deaths the node sends an error reply instead. From
then on one death is enough for a message of the same run, until a message of this run works. An end
by a signal, for another app, or by a new boot (as after a power cut) is no death.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewire.deploy.device.node_database import NodeDatabase

MOST = 3  # deaths during one message
BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux makes a new one at each boot
_RUNS = 16  # stored runs
_RECORD = "deaths"


class NodeDied(Exception):
    """The node gives a message up, because its process has died during this message."""


class Deaths:
    """The count of one node, in a record of its database.

    `left`: the id of the message on disk when this process began, or "". The record holds the
    `runs` of which a message was given up, and the `boot` of its last change, or "" if a death does
    not count. It changes for a message that was on disk, and at the first message of a boot.
    """

    def __init__(self, database: NodeDatabase, left: str) -> None:
        self._database, self._left, self._now = database, left, ""
        self._boot = BOOT.read_text().strip() if BOOT.exists() else "unknown"
        self._said: dict[str, Any] = {"message": "", "count": 0, "runs": [], "boot": ""}
        with suppress(OSError, ValueError):  # a damaged record counts as none
            self._said |= json.loads(database.read(_RECORD) or b"{}")

    def begin(self, message: str, run: str) -> None:
        """Take up a message, before anything else of it is read. Its deaths are then on disk.

        Raises `NodeDied` if the message is given up, and `OSError`.
        """
        said = self._said
        if message != self._now:
            left = message == self._left
            died = left and said["boot"] == self._boot
            count = died + (said["count"] if said["message"] == message else 0)
            said = {**said, "message": message, "count": count, "boot": self._boot}
            if left or self._said["boot"] != self._boot:
                self._write(said)
            self._said, self._now = said, message
        if said["count"] >= (1 if run in said["runs"] else MOST):
            if run not in said["runs"]:
                self._write({**said, "runs": [*said["runs"][1 - _RUNS :], run]})
            raise NodeDied(f"the node has died during this message (deaths: {said['count']})")

    def over(self, run: str) -> None:
        """Note that the message taken up has worked: its reply is at the server."""
        said = self._said
        if said["count"] or run in said["runs"]:
            runs = [each for each in said["runs"] if each != run]
            self._write({**said, "count": 0, "runs": runs})
        self._now = ""

    def spare(self) -> None:
        """Note that this process ends now, and that its end is no death."""
        if self._now:
            with suppress(OSError):
                self._write({**self._said, "boot": ""})

    def _write(self, said: dict[str, Any]) -> None:
        self._database.write(_RECORD, json.dumps(said).encode())
        self._said = said
