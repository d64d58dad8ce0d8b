"""Brings nodes to the newest model by the server's last steps, which the nodes repeat."""

from __future__ import annotations

from collections import deque

import numpy as np

from ...coders.shared_context import SharedContext
from ...layout import Layout
from ...make import make_codec
from ..node.state import checksum
from ..records import payload_records
from ..replica import ACTIVITY, INITIAL_VERSION, MODEL, VERSION, Replica, vector_layout
from .delta_sync import RAW, ModelUpdate

LOSSLESS = make_codec(quantizer="float32", coder="entropy")
# Updates are sent if they have at most WORTH_IT times the bytes of a snapshot. With 1.1, a dense
# update with its header is sent and not a snapshot.
WORTH_IT = 1.1


class StepLogSync:
    """Stores the last applied updates and their learning rates, so that nodes can repeat the steps.

    A node gets the updates that it lacks, with the rates at which they were applied. It gets a
    snapshot (the model and the optimiser's state) if it has no replica yet, or has replied with an
    error. It also gets a snapshot if this is smaller than the updates (`WORTH_IT`). If a node's
    reply was lost, the node may have a later version than the server knows. Then the node skips the
    updates that it has already applied. If `follow` is False, every message holds the whole model,
    and nodes have no replica.
    """

    skips = True  # a node ignores the steps that it has already applied

    def __init__(
        self,
        replica: Replica,
        layout: Layout,
        *,
        follow: bool,
        recent: deque[tuple[bytes, float]] | None = None,
    ) -> None:
        self._replica, self._layout, self._follow = replica, layout, follow
        self.recent = deque[tuple[bytes, float]]() if recent is None else recent
        self._recent_bytes = sum(len(payload) for payload, _ in self.recent)
        self._cache: dict[int | None, ModelUpdate] = {}
        floats = [a for name, a in replica.arrays.items() if name != VERSION]
        self._snapshot_bytes = sum(a.nbytes for a in floats)

    def add(self, payload: bytes, rate: float) -> None:
        """Store the averaged update that made the newest version, and its learning rate.

        Call `add` after the server's replica has taken the step.
        """
        self._cache.clear()
        if not self._follow:
            return
        self.recent.append((payload, float(rate)))  # nodes expect floats
        self._recent_bytes += len(payload)
        while self._recent_bytes > self._snapshot_bytes and len(self.recent) > 1:
            self._recent_bytes -= len(self.recent.popleft()[0])

    def knows(self, version: int) -> bool:
        """Return whether all updates of the server's steps after a version are stored."""
        return self._replica.version - version <= len(self.recent)

    def starts_from_seed(self, *, new: bool) -> bool:
        """Return whether the updates of all steps since the model before training are stored."""
        return self._follow and self.knows(INITIAL_VERSION)

    def model_update(self, base: int | None) -> ModelUpdate:
        """Return the newest model for nodes at the version `base`: missing steps, or a snapshot."""
        if base not in self._cache:
            self._cache[base] = self._snapshot() if base is None else self._updates(base)
        return self._cache[base]

    def context(self, version: int | None) -> SharedContext | None:
        """Return the context of index sets at a version; None if it is not the newest."""
        return self._replica.context if version == self._replica.version else None

    def checksum(self) -> bytes:
        """Return the 8-byte checksum of the model, which nodes compare with their model's."""
        return checksum(self._replica.model)

    def _updates(self, base: int) -> ModelUpdate:
        missing = self._replica.version - base
        found = list(self.recent)[len(self.recent) - missing :]
        if sum(len(payload) for payload, _ in found) > WORTH_IT * self._snapshot_bytes:
            return self.model_update(None)
        payloads = {str(base + i): payload for i, (payload, _) in enumerate(found, 1)}
        rates = [rate for _, rate in found]
        header: dict[str, object] = {"base": base, "rates": rates}
        if base == INITIAL_VERSION:
            header["checksum"] = self.checksum()  # a node may have made another model
        return self._parcel(payloads, header)

    def _snapshot(self) -> ModelUpdate:
        payloads: dict[str, bytes] = {}
        for name, array in self._replica.arrays.items():
            if name == VERSION or (not self._follow and payloads):
                continue
            layout = self._layout if name == MODEL else vector_layout(name, array.size)
            codec = LOSSLESS if name == ACTIVITY else RAW
            payloads[name] = codec.encode(array.astype(np.float32, copy=False), layout)
        return self._parcel(payloads, {})

    def _parcel(self, payloads: dict[str, bytes], header: dict[str, object]) -> ModelUpdate:
        if self._follow:
            header["version"] = self._replica.version
        return ModelUpdate(payload_records(payloads), header)
