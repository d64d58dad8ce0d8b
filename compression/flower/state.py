"""What the link keeps of one node, in its `Context.state`: it lives on every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from logging import getLogger
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from xxhash import xxh3_64_digest

from ..codec import Codec
from ..layout import Layout
from ..own import Own
from ..stages import Buffer, Memory
from .arrays import FlatArray, Vector, filled

MEMORY, NUMBERS = "edgewire-memory", "edgewire-numbers"  # records in the state
_LAST = "last-payload"  # an entry of MEMORY beside the codec's own arrays
Arrays = dict[str, NDArray[Any]]
log = getLogger("edgewire")


def checksum(vector: Vector) -> bytes:
    """Return 8 bytes that name the content of a model, float32 (n,)."""
    return xxh3_64_digest(np.ascontiguousarray(vector, dtype="<f4").data)


def own_array(array: Array) -> NDArray[Any]:
    """Return an array that may be written to."""
    if isinstance(array, FlatArray) and array.vector.flags.writeable:
        return array.vector  # type: ignore[no-any-return]
    own: NDArray[Any] = array.numpy()
    return own


def kept(state: RecordDict, record: str) -> Arrays:
    """Return a record's arrays, shared with the state; none if it is not there.

    One that has crossed a process boundary is copied: Flower's are bytes, Ray's read-only views.
    """
    arrays = cast(ArrayRecord, state.get(record, ArrayRecord()))
    return {name: own_array(array) for name, array in arrays.items()}


def keep(state: RecordDict, record: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put arrays into a node's state; they are shared, not copied."""
    flat = {name: FlatArray(np.asarray(array)) for name, array in arrays.items()}
    state[record] = filled(ArrayRecord, flat)


@lru_cache(maxsize=16)
def fingerprint(layout: Layout) -> bytes:
    """Return 8 bytes that name tensors: their names and shapes."""
    return xxh3_64_digest(repr((layout.names, layout.shapes)).encode())


class NodeState:
    """A node's memory of what it did not send, and its last reply until that is known as applied.

    `save` writes everything back.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self.memory: Memory = kept(state, MEMORY)
        last = self.memory.pop(_LAST, None)
        self.last: Buffer | None = None if last is None else last.data
        numbers = cast(ConfigRecord, state.get(NUMBERS, ConfigRecord()))
        self.sequence = cast(int, numbers.get("sequence", 0))  # of the last reply
        self._tensors = numbers.get("tensors")  # that the memory is of

    def save(self) -> None:
        """Put everything into the node's state."""
        last = {} if self.last is None else {_LAST: np.frombuffer(self.last, dtype=np.uint8)}
        keep(self._state, MEMORY, {**self.memory, **last})
        numbers = {"sequence": self.sequence, "tensors": self._tensors}
        self._state[NUMBERS] = filled(ConfigRecord, numbers)

    def _expect(self, layout: Layout) -> None:
        """Drop what is kept of other tensors than these: there is nothing to add it to."""
        tensors = fingerprint(layout)
        if self.memory and self._tensors != tensors:
            log.warning("the model has other tensors now: what this node kept unsent is dropped")
            self.memory.clear()
            self.last = None
        self._tensors = tensors

    def _start_anew(self, applied: int) -> None:
        """Drop what is kept: of `applied`, which the server has, this state knows nothing."""
        log.warning(
            "this node's state ends with its reply %d, and the server has applied %d: the state "
            "was lost, or is an old copy, so the node's memory starts anew",
            self.sequence,
            applied,
        )
        self.memory.clear()
        self.last = None
        self.sequence = applied
        self.save()  # now: what follows may raise

    def encoded(
        self,
        codec: Codec,
        update: Vector,
        layout: Layout,
        *,
        applied: int | None,
        seed: int,
        loss: float | None = None,
        workers: int = 0,
        named: bool = False,
        own: Sequence[Own] = (),
    ) -> bytes:
        """Return the payload of the next reply, whose number is then `sequence`; all is saved.

        `applied`: number of this node's last reply that is in the server's model (0: none). If
        that is not the last one sent, that one is put back into the memory first, so that nothing
        is lost, and a payload never builds on one that the server does not have. A number beyond
        `sequence` says that this state was lost, or is an old copy: what was sent meanwhile is
        still in its memory, so that starts anew, and counts where the server is. None: nobody knows
        yet; nothing is put back, now or later. Errors as `Codec.encode`.
        """
        self._expect(layout)
        arrived = applied == self.sequence
        if applied is not None and applied > self.sequence:
            self._start_anew(applied)
        if applied is not None and not arrived and self.last is not None:
            codec.put_back(self.last, layout, self.memory)
            self.last = None
            self.save()  # now: what follows may raise
        payload = codec.encode(
            update,
            layout,
            memory=self.memory,
            seed=seed,
            names=named,
            loss=loss,
            workers=workers,
            as_before=arrived and self.sequence > 0,
            own=own,
        )
        self.sequence += 1
        self.last = payload if codec.keeps else None
        self.save()
        return payload
