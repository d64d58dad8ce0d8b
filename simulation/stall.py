"""A ServerApp that waits for nodes, or replies, of which there will never be more."""

from __future__ import annotations

import inspect
import threading
import time
from logging import WARNING
from typing import NamedTuple

from flwr.supercore import log

from .errors import EngineError

ASKS, SAID, SECONDS = 10, 10.0, 60.0  # so often in vain, and so long: it is said, the run ends
# Who takes more CPU works meanwhile: seconds an ask (one that never sleeps takes little of it for
# each), and of each second that passes (a spinner on a terminal takes 0.01 of it).
IDLE, SHARE = 0.01, 0.1
FEWER = "let its strategy ask for fewer: min_available_nodes, min_train_nodes, min_evaluate_nodes"


class MissingNodesError(EngineError):
    """The ServerApp waits for nodes that will never be there."""


class _Wait(NamedTuple):
    """What a thread has asked for in vain: how often, since when (wall clock, CPU of them all)."""

    asks: int
    began: float
    cpu: float


class StallGuard:
    """Says, and then raises, that a ServerApp asks again and again for what cannot change.

    The set of nodes is fixed, and a virtual clock stands still while nothing is under way: who
    waits for more nodes waits for ever. A process that computes between its asks does not wait.
    After `SAID` seconds one line is logged; after `SECONDS` the thread that made this, the
    ServerApp's, is ended. Other threads are not: they may look for nodes as long as they like.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._waits: dict[int, _Wait] = {}  # by the thread's ident
        self._said = False

    def moved(self) -> None:
        """Note that something was sent, or has come."""
        self._waits.clear()

    def asked(self, nodes: int) -> None:
        """Note that somebody has asked for nodes or replies, and found `nodes` alone.

        Raises `MissingNodesError` if it waits for more.
        """
        expect_nodes(_wanted(), nodes)
        thread, now, cpu = threading.get_ident(), time.monotonic(), time.process_time()
        asks, began, before = self._waits.get(thread, _Wait(0, now, cpu))
        if cpu - before > max(IDLE * (asks + ASKS), SHARE * (now - began)):
            asks, began, before = 0, now, cpu  # at work: it begins to wait now, if at all
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
    """Raise `MissingNodesError` if so many nodes are waited for, and fewer will ever be there."""
    if wanted > nodes:
        raise MissingNodesError(
            f"the ServerApp waits for {_nodes(wanted)}, and there will never be more than "
            f"{nodes}: give --nodes {wanted} (run.py: nodes={wanted}), or {FEWER}"
        )


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _wanted() -> int:
    """Return how many nodes Flower's `sample_nodes` waits for, if that is who asks; else 0.

    It asks its grid once a second until there are enough. It says how many to its log alone.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "sample_nodes" and "min_available_nodes" in frame.f_locals:
            return int(frame.f_locals["min_available_nodes"])
        frame = frame.f_back
    return 0
