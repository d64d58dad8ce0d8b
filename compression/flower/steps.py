"""What the server sends to nodes that follow its model: the steps that they lack."""

from __future__ import annotations

from collections import deque

from ..layout import Layout
from .arrays import payload_records
from .differences import RAW
from .ledger import Parcel
from .replica import MODEL, VERSION, Replica
from .state import checksum

WORTH_IT = 1.1  # a dense update with its header is no reason for a snapshot yet


class Steps:
    """The updates applied last, kept for nodes that missed some of them.

    A node gets those that it lacks, with the rates they were applied at. It gets a snapshot, the
    model and the optimiser's memory, if it has no replica yet, answered with an error, or lacks so
    many that a snapshot is smaller. A node whose answer was lost may be ahead of what is known of
    it: it leaves out what it has. `follow` False: every message carries the model, nodes keep none.
    """

    skips = True

    def __init__(self, replica: Replica, layout: Layout, *, follow: bool) -> None:
        self._replica, self._layout, self._follow = replica, layout, follow
        self.recent: deque[tuple[bytes, float]] = deque()  # payloads, and their rates
        self._recent_bytes = 0
        self._cache: dict[int | None, Parcel] = {}
        floats = [a for name, a in replica.arrays.items() if name != VERSION]
        self._snapshot_bytes = sum(a.nbytes for a in floats)

    def add(self, payload: bytes, rate: float) -> None:
        """Note the update that made the newest version (after the replica took the step)."""
        self._cache.clear()
        if not self._follow:
            return
        self.recent.append((payload, rate))
        self._recent_bytes += len(payload)
        while self._recent_bytes > self._snapshot_bytes and len(self.recent) > 1:
            self._recent_bytes -= len(self.recent.popleft()[0])

    def knows(self, version: int) -> bool:
        """Return whether all steps since a version are still there."""
        return self._replica.version - version <= len(self.recent)

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
        found = list(self.recent)[len(self.recent) - missing :]
        if sum(len(payload) for payload, _ in found) > WORTH_IT * self._snapshot_bytes:
            return self.parcel(None)
        payloads = {str(base + i): payload for i, (payload, _) in enumerate(found, 1)}
        rates = [rate for _, rate in found]
        return self._parcel(payloads, {"base": base, "rates": rates})

    def _snapshot(self) -> Parcel:
        payloads: dict[str, bytes] = {}
        for name, array in self._replica.arrays.items():
            if name == VERSION or (not self._follow and payloads):
                continue
            layout = self._layout
            if name != MODEL:
                layout = Layout((name,), (array.shape,), ("float32",))
            payloads[name] = RAW.encode(array, layout)
        return self._parcel(payloads, {})

    def _parcel(self, payloads: dict[str, bytes], note: dict[str, object]) -> Parcel:
        if self._follow:
            note["version"] = self._replica.version
        return Parcel(payload_records(payloads), note, sum(map(len, payloads.values())))
