"""Detects a ServerApp that waits for nodes or replies that will never arrive."""

from __future__ import annotations

import inspect
import threading
import time

from edgewire.machine.errors import EngineError

ASKS, SECONDS = 30, 60.0  # a wait is in vain after so many calls and so long
FEWER = "let its strategy ask for fewer: min_available_nodes, min_train_nodes, min_evaluate_nodes"


class MissingNodesError(EngineError):
    """The ServerApp waits for nodes that will never come online."""


class StallGuard:
    """Ends a ServerApp that polls for nodes or replies that will never arrive.

    The set of nodes is fixed. The virtual clock does not advance while no message is under way. So
    a ServerApp that waits for more nodes waits for ever. The guard watches only the thread that
    created it, which is the ServerApp's. Other threads may poll without a limit.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asks, self._began = 0, 0.0

    def moved(self) -> None:
        """Record that a message was sent, or that a reply has arrived."""
        self._asks = 0

    def asked(self, nodes: int) -> None:
        """Record that a call for nodes or replies has found `nodes` nodes and nothing new.

        Raises `MissingNodesError` if the ServerApp waits in vain.
        """
        expect_nodes(_wanted(), nodes)
        if threading.get_ident() != self._thread:
            return
        now = time.monotonic()
        self._began = self._began if self._asks else now
        self._asks += 1
        if self._asks >= ASKS and now - self._began >= SECONDS:
            raise MissingNodesError(
                f"the ServerApp asks for nodes or replies in vain for {now - self._began:.0f} s: "
                f"with {_nodes(nodes)}, and nothing under way, no more will come. If it waits for "
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
