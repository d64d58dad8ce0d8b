"""Tells systemd that a service is ready and goes on, as its function sd_notify does."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY = "READY=1"  # the service has started
ALIVE = "WATCHDOG=1"  # else systemd restarts it after the unit's WatchdogSec


def notify(state: str) -> None:
    """Send systemd a state. This does not wait, and without systemd it does nothing."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), f"\0{path[1:]}" if path[0] == "@" else path)
