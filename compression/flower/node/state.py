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

from ...base import Buffer, Memory
from ...codec import Codec
from ...layout import Layout
from ...native_tensors import NativeTensor
from ..records import FlatArray, Vector, filled

MEMORY, NUMBERS = "edgewire-memory", "edgewire-numbers"  # records in the state
_LAST = "last-payload"  # an entry of MEMORY beside the codec's own arrays
_NO_COORDINATES = ("loss", "steps")  # entries that hold one number, whatever the model's size
NONE_TIED: dict[str, str] = {}
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


def left_out(layout: Layout, tied: Mapping[str, str]) -> Layout:
    """Return a layout without the tensors that are copies, by name."""
    if not tied:
        return layout
    return layout.without([t for t, name in enumerate(layout.names) if name in tied])


def _trained(codec: Codec, layout: Layout) -> Layout:
    """Return the tensors of which a memory is."""
    return layout.without(codec.exact_tensors(layout))


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
        said = cast(list[str], numbers.get("tied", []))
        self._tied = dict(zip(said[::2], said[1::2], strict=True))  # left out of it; their sources

    def save(self) -> None:
        """Put everything into the node's state."""
        last = {} if self.last is None else {_LAST: np.frombuffer(self.last, dtype=np.uint8)}
        keep(self._state, MEMORY, {**self.memory, **last})
        numbers: dict[str, object] = {"sequence": self.sequence, "tensors": self._tensors}
        if self._tied:
            numbers["tied"] = [name for pair in self._tied.items() for name in pair]
        self._state[NUMBERS] = filled(ConfigRecord, numbers)

    def may_tie(self, layout: Layout, name: str, source: str) -> bool:
        """Return whether a tensor may be left out, as a copy: nothing of its own is kept of it.

        `layout`: of all tensors.
        """
        kept = bool(self.memory) or self.last is not None
        there = kept and self._tensors == fingerprint(layout)
        return not there or self._tied.get(name) == source

    def _expect(self, layout: Layout) -> None:
        """Drop what is kept of other tensors than these: there is nothing to add it to."""
        tensors = fingerprint(layout)
        if self.memory and self._tensors != tensors:
            log.warning("the model has other tensors now: what this node kept unsent is dropped")
            self.memory.clear()
            self.last = None
        self._tensors = tensors

    def _untie(self, codec: Codec, layout: Layout, tied: Mapping[str, str]) -> bool:
        """Make the memory one of all tensors but those `tied`; return whether it was of others.

        A tensor that was a copy until now keeps what its source keeps: both were sent the same.
        """
        before, self._tied = self._tied, dict(tied)
        if before == tied or not self.memory:
            return before != tied
        old, new = (_trained(codec, left_out(layout, names)) for names in (before, tied))
        place, bounds = {name: t for t, name in enumerate(old.names)}, old.offsets.tolist()
        sources = [place[before.get(name, name)] for name in new.names]
        for name, array in self.memory.items():
            if array.shape == (old.size,) and name not in _NO_COORDINATES:
                pieces = [array[bounds[t] : bounds[t + 1]] for t in sources]
                self.memory[name] = np.concatenate(pieces)
        return True

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
        own: Sequence[NativeTensor] = (),
        tied: Mapping[str, str] = NONE_TIED,
    ) -> bytes:
        """Return the payload of the next reply, whose number is then `sequence`; all is saved.

        `layout`: of all tensors; `update`: without those `tied`, copies of others, by their names
        and these others'; each one as `may_tie` allows.
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
            codec.restore(self.last, left_out(layout, self._tied), self.memory)
            self.last = None
            self.save()  # now: what follows may raise
        other = self._untie(codec, layout, tied)
        payload = codec.encode(
            update,
            left_out(layout, tied),
            memory=self.memory,
            seed=seed,
            names=named,
            loss=loss,
            workers=workers,
            as_before=arrived and self.sequence > 0 and not other,
            own=own,
        )
        self.sequence += 1
        self.last = payload if codec.keeps else None
        self.save()
        return payload
