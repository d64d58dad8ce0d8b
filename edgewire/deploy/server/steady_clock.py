"""The server's clock: it goes on evenly when the machine's clock is set.

Flower takes from the machine's clock until when a message, a node or a ServerApp is valid. A step
of that clock would end them. Only signatures, with times of other clocks, are checked with it.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

from flwr.supercore import date

_SIGNATURES = ("node_auth", "node_auth_server_interceptor", "superexec")  # their modules' last word
_START, _BEGAN = datetime.now(UTC), time.monotonic()


def now() -> datetime:
    """Return the time at the start of this process plus the time since then, in UTC."""
    return _START + timedelta(seconds=time.monotonic() - _BEGAN)


def install() -> None:
    """Let Flower's loaded modules use this clock, except those that check signatures."""
    for name, module in list(sys.modules.items()):
        own = name.startswith("flwr.") and name.rpartition(".")[2] not in _SIGNATURES
        if own and module is not date and vars(module).get("now") is date.now:
            module.now = now  # type: ignore[attr-defined]
