"""Detects a ServerApp that waits for nodes or replies that will never arrive."""

from __future__ import annotations

import inspect
import threading
import time
from logging import WARNING
from typing import NamedTuple

from flwr.supercore import log

from edgewire.machine.errors import EngineError

# ASKS: calls without a result before the guard reacts. SAID: seconds until the guard logs a line.
# SECONDS: seconds until it raises `MissingNodesError`.
ASKS, SAID, SECONDS = 10, 10.0, 60.0
# A process that uses more CPU time than both limits is working. IDLE: CPU seconds per call (a loop
# without a sleep uses little per call). SHARE: CPU seconds per second (a progress spinner on a
# terminal uses 0.01).
IDLE, SHARE = 0.01, 0.1
FEWER = "let its strategy ask for fewer: min_available_nodes, min_train_nodes, min_evaluate_nodes"


class MissingNodesError(EngineError):
    """The ServerApp waits for nodes that will never come online."""


class _Wait(NamedTuple):
    """A thread's calls without a result: their count, and wall and CPU time of the first call.

    `cpu`: None until the second call. A ServerApp asks once before each round, and the CPU time
    takes a call to the operating system.
    """

    asks: int
    began: float
    cpu: float | None = None


class StallGuard:
    """Reports a ServerApp that polls for nodes or replies that will never arrive.

    The set of nodes is fixed. The virtual clock does not advance while no message is under way. So
    a ServerApp that waits for more nodes waits for ever. A process that computes between its calls
    is not waiting. After `SAID` seconds the guard logs one line. After `SECONDS` it raises, but
    only in the thread that created the guard, which is the ServerApp's. Other threads may poll
    without a limit.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._waits: dict[int, _Wait] = {}  # by the thread's ident
        self._said = False

    def moved(self) -> None:
        """Record that a message was sent, or that a reply has arrived."""
        self._waits.clear()

    def asked(self, nodes: int) -> None:
        """Record that a call for nodes or replies has found `nodes` nodes and nothing new.

        Raises `MissingNodesError` if the caller has waited for `SECONDS`.
        """
        expect_nodes(_wanted(), nodes)
        thread, now = threading.get_ident(), time.monotonic()
        if (waits := self._waits.get(thread)) is None:
            self._waits[thread] = _Wait(1, now)
            return
        cpu = time.process_time()
        asks, began, before = waits.asks, waits.began, cpu if waits.cpu is None else waits.cpu
        if cpu - before > max(IDLE * (asks + ASKS), SHARE * (now - began)):
            asks, began, before = 0, now, cpu  # the process was working, so a wait begins only now
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
    """Return the number of nodes that Flower's `sample_nodes` waits for, or 0 for other callers.

    `sample_nodes` polls the grid once a second until enough nodes are online. It only logs the
    number that it needs, so this function reads the number from the stack frame of `sample_nodes`.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "sample_nodes" and "min_available_nodes" in frame.f_locals:
            return int(frame.f_locals["min_available_nodes"])
        frame = frame.f_back
    return 0
