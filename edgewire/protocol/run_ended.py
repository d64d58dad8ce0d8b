"""The error that a ServerApp's grid raises when its run was stopped at the server."""

from __future__ import annotations

import httpx

STOPPED = (401, 403)  # HTTP statuses after a run's end: its token is unknown or invalid


class RunEnded(ConnectionError):
    """The run was stopped at the server."""


def was_stopped(error: BaseException) -> bool:
    """Return whether a grid's error means that the run was stopped at the server.

    An error of Flower's own grid is judged by its HTTP status only.
    """
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in STOPPED
    return isinstance(error, RunEnded)
