"""Repeats calls to a server that does not answer for some time."""

from __future__ import annotations

import httpx
from flwr.supercore.retry import RetryInvoker

PATIENCE = 120.0  # seconds without an answer until a server counts as gone


def patient(invoker: RetryInvoker, seconds: float | None = PATIENCE) -> RetryInvoker:
    """Let one of Flower's clients repeat each call that fails on the way, whatever the error.

    Flower's own rule gives up if the error's text names TLS. But so does the text of a handshake
    that a stopped server does not answer. Flower's rules for HTTP statuses stay. `seconds`: for how
    long a call is repeated; None: without a limit.
    """
    theirs = invoker.should_giveup or (lambda error: True)
    invoker.recoverable_exceptions = (httpx.TransportError, httpx.HTTPStatusError)
    invoker.should_giveup = lambda error: isinstance(error, httpx.HTTPStatusError) and theirs(error)
    invoker.max_time = seconds
    return invoker
