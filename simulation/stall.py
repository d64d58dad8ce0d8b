"""Detects a ServerApp that waits for nodes or replies that will never come."""

from __future__ import annotations

import inspect
import threading
import time
from logging import WARNING
from typing import NamedTuple

from flwr.supercore import log

from .errors import EngineError

# Calls in vain before it reacts; seconds until it logs a line; seconds until it ends the run.
ASKS, SAID, SECONDS = 10, 10.0, 60.0
# A process that uses more CPU than this is working: CPU seconds a call (a loop without a sleep uses
# little in each), and CPU seconds a second (a spinner on a terminal uses 0.01).
IDLE, SHARE = 0.01, 0.1
FEWER = "let its strategy ask for fewer: min_available_nodes, min_train_nodes, min_evaluate_nodes"


class MissingNodesError(EngineError):
    """The ServerApp waits for nodes that will never come online."""


class _Wait(NamedTuple):
    """A thread's calls in vain: their count, and the wall and process CPU time of the first one."""

    asks: int
    began: float
    cpu: float


class StallGuard:
    """Logs, and later raises, that a ServerApp polls for something that cannot change.

    The set of nodes is fixed, and the virtual clock stands still while nothing is under way, so a
    ServerApp that waits for more nodes waits for ever. A process that computes between its calls is
    not waiting. After `SAID` seconds the guard logs one line; after `SECONDS` it raises in the
    ServerApp's thread, which has made the guard. Other threads may poll as long as they like.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._waits: dict[int, _Wait] = {}  # by the thread's ident
        self._said = False

    def moved(self) -> None:
        """Note that a message was sent, or that a reply has arrived."""
        self._waits.clear()

    def asked(self, nodes: int) -> None:
        """Note that a call for nodes or replies has found `nodes` nodes and nothing new.

        Raises `MissingNodesError` if the caller has waited for `SECONDS`.
        """
        expect_nodes(_wanted(), nodes)
        thread, now, cpu = threading.get_ident(), time.monotonic(), time.process_time()
        asks, began, before = self._waits.get(thread, _Wait(0, now, cpu))
        if cpu - before > max(IDLE * (asks + ASKS), SHARE * (now - began)):
            asks, began, before = 0, now, cpu  # it was working: a wait can begin only now
        self._waits[thread] = _Wait(asks + 1, began, before)
        if asks + 1 < ASKS or now - began < SAID:
            return
        if not self._said:
            self._said = True
            log(WARNING, "%s", _in_vain(nodes, now - began))
        if thread == self._thread and now - began >= SECONDS:
            raise MissingNodesError(_in_vain(nodes, now - began))


def _in_vain(nodes: int, seconds: float) -> str:
    return (
        f"the ServerApp asks for nodes or replies in vain for {seconds:.0f} s: with "
        f"{_nodes(nodes)}, and nothing under way, no more will come. If it waits for "
        f"nodes, give more (--nodes; run.py: nodes=), or {FEWER}"
    )


def expect_nodes(wanted: int, nodes: int) -> None:
    """Raise `MissingNodesError` if `wanted` is more than the `nodes` that will ever be online."""
    if wanted > nodes:
        raise MissingNodesError(
            f"the ServerApp waits for {_nodes(wanted)}, and there will never be more than "
            f"{nodes}: give --nodes {wanted} (run.py: nodes={wanted}), or {FEWER}"
        )


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _wanted() -> int:
    """Return how many nodes Flower's `sample_nodes` waits for if it is the caller; else 0.

    `sample_nodes` polls its grid once a second until there are enough nodes, and tells the number
    only to its log, so it is read from its stack frame.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "sample_nodes" and "min_available_nodes" in frame.f_locals:
            return int(frame.f_locals["min_available_nodes"])
        frame = frame.f_back
    return 0
