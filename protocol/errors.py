"""The error of a ServerApp's grid whose run was stopped at the server."""

from __future__ import annotations

import httpx

STOPPED = (401, 403)  # HTTP statuses after a run's end: its token is unknown, or no longer valid


class RunEnded(ConnectionError):
    """Somebody has stopped the run at the server."""


def was_stopped(error: BaseException) -> bool:
    """Return whether an error of a grid's call says that the run was stopped at the server.

    Of an error of Flower's own calls only the status is known.
    """
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in STOPPED
    return isinstance(error, RunEnded)
