"""A ServerApp that waits for nodes, or replies, of which there will never be more."""

from __future__ import annotations

import inspect
import threading
import time

from .errors import EngineError

ASKS, SECONDS = 10, 10.0  # so often, and for so long, in vain: only who waits asks like that
FEWER = "let its strategy ask for fewer: min_available_nodes, min_train_nodes, min_evaluate_nodes"


class MissingNodesError(EngineError):
    """The ServerApp waits for nodes that will never be there."""


class StallGuard:
    """Raises for a ServerApp that asks again and again for what cannot change.

    The set of nodes is fixed, and a virtual clock stands still while nothing is under way: who
    waits for more nodes waits for ever. Only the thread that makes this is counted: others may
    look for nodes every few seconds while it works.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asked, self._since = 0, 0.0

    def moved(self) -> None:
        """Note that something was sent, or has come."""
        self._asked = 0

    def asked(self, nodes: int) -> None:
        """Note that somebody has asked for nodes or replies, and found `nodes` alone.

        Raises `MissingNodesError` if it waits for more.
        """
        expect_nodes(_wanted(), nodes)
        if threading.get_ident() != self._thread:
            return
        self._asked += 1
        if self._asked == 1:
            self._since = time.monotonic()
        elif self._asked >= ASKS and time.monotonic() - self._since >= SECONDS:
            raise MissingNodesError(
                f"the ServerApp asks for nodes or replies in vain for {SECONDS:.0f} s: with "
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
