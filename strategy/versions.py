"""Which version of the model each node has, and what brings it to the newest one."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from flwr.app import ArrayRecord

from compression import make_codec
from compression.flower import layout_of, to_vector
from compression.flower.arrays import payload_records
from compression.flower.state import checksum
from compression.layout import Layout
from compression.statistics import trained_entries
from task.optimizers import ServerOptimizer
from task.replica import MODEL, VERSION, Replica

WORTH_IT = 1.1  # a dense update with its header is no reason for a snapshot yet
WHOLE = make_codec(quantizer="float32", coder="raw")


def first_replica(
    optimizer: ServerOptimizer, initial_arrays: ArrayRecord
) -> tuple[Replica, Layout]:
    """Return version 0, a copy of the named arrays, and their layout.

    Raises `ValueError` if running statistics do not come after all parameters.
    """
    layout, vector = layout_of(initial_arrays), to_vector(initial_arrays).copy()
    return Replica.start(optimizer, trained_entries(layout), vector), layout


class Parcel(NamedTuple):
    """What a message carries of the model, and what to say of it."""

    arrays: ArrayRecord
    config: dict[str, int | list[float]]
    bytes: int  # of all payloads in it


class Versions:
    """The updates applied last, kept for nodes that missed some of them.

    A node gets those that it lacks, with the rates they were applied at. It gets a snapshot, the
    model and the optimiser's memory, if it has no replica yet, answered with an error, or lacks so
    many that a snapshot is smaller. A node whose answer was lost may be ahead of what is known of
    it: it leaves out what it has. `follow` False: every message carries the model, nodes keep none.
    """

    def __init__(self, replica: Replica, layout: Layout, follow: bool) -> None:
        self._replica, self._layout, self._follow = replica, layout, follow
        self._recent: deque[tuple[bytes, float]] = deque()
        self._recent_bytes = 0
        self._has: dict[int, int] = {}
        self._cache: dict[int | None, Parcel] = {}
        floats = [a for name, a in replica.arrays.items() if name != VERSION]
        self._snapshot_bytes = sum(a.nbytes for a in floats)

    def add(self, payload: bytes, rate: float) -> None:
        """Note the update that made the newest version (after the replica took the step)."""
        self._cache.clear()
        if not self._follow:
            return
        self._recent.append((payload, rate))
        self._recent_bytes += len(payload)
        while self._recent_bytes > self._snapshot_bytes and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft()[0])

    def confirm(self, node: int, version: int) -> None:
        """Note that a node has a version."""
        if self._follow:
            self._has[node] = version

    def lost(self, node: int) -> None:
        """Note that nobody knows what a node has: it gets a snapshot next."""
        self._has.pop(node, None)

    def base_of(self, node: int) -> int | None:
        """Return the version on which a message to the node can build; None: it gets a snapshot."""
        base = self._has.get(node)
        if base is None or self._replica.version - base > len(self._recent):
            return None
        return base

    def parcel(self, base: int | None) -> Parcel:
        """Return what nodes of version `base` get; the same object for all of them."""
        if base not in self._cache:
            self._cache[base] = self._snapshot() if base is None else self._updates(base)
        return self._cache[base]

    def checksum(self) -> bytes:
        """Return 8 bytes that every node's model must have."""
        return checksum(self._replica.model)

    def _updates(self, base: int) -> Parcel:
        missing = self._replica.version - base
        found = list(self._recent)[len(self._recent) - missing :]
        if sum(len(payload) for payload, _ in found) > WORTH_IT * self._snapshot_bytes:
            return self.parcel(None)
        payloads = {str(base + i): payload for i, (payload, _) in enumerate(found, 1)}
        return _parcel(payloads, {"base": base, "rates": [rate for _, rate in found]})

    def _snapshot(self) -> Parcel:
        payloads: dict[str, bytes] = {}
        for name, array in self._replica.arrays.items():
            if name == VERSION or (not self._follow and payloads):
                continue
            layout = self._layout
            if name != MODEL:
                layout = Layout((name,), (array.shape,), ("float32",))
            payloads[name] = WHOLE.encode(array, layout)
        return _parcel(payloads, {"version": self._replica.version} if self._follow else {})


def _parcel(payloads: dict[str, bytes], config: dict[str, int | list[float]]) -> Parcel:
    return Parcel(payload_records(payloads), config, sum(map(len, payloads.values())))
