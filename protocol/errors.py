"""How a ServerApp's grid tells that its run was stopped at the server."""

from __future__ import annotations

import httpx

STOPPED = (401, 403)  # of a run that is over: its token is not known any more, or is of no use


class RunEnded(ConnectionError):
    """Somebody has stopped the run at the server."""


def was_stopped(error: BaseException) -> bool:
    """Return whether an error of a grid's call says that the run was stopped at the server.

    Flower's own calls know but the status.
    """
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in STOPPED
    return isinstance(error, RunEnded)
