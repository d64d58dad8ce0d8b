"""A node's residual, and what else the link keeps of it, in its `Context.state`."""

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
_NO_COORDINATES = ("loss", "steps")  # entries that hold one number, for a model of any size
NONE_TIED: dict[str, str] = {}
Arrays = dict[str, NDArray[Any]]
log = getLogger("edgewire")


def checksum(vector: Vector) -> bytes:
    """Return the 8-byte xxh3 checksum of a model, float32 (n,)."""
    return xxh3_64_digest(np.ascontiguousarray(vector, dtype="<f4").data)


def own_array(array: Array) -> NDArray[Any]:
    """Return a writeable array; a copy only if the given one is read-only or plain bytes."""
    if isinstance(array, FlatArray) and array.vector.flags.writeable:
        return array.vector  # type: ignore[no-any-return]
    own: NDArray[Any] = array.numpy()
    return own


def kept(state: RecordDict, record: str) -> Arrays:
    """Return a record's arrays, shared with the state; an empty dict if there is no such record.

    A record that has crossed a process boundary is copied: Flower's are bytes, Ray's read-only.
    """
    arrays = cast(ArrayRecord, state.get(record, ArrayRecord()))
    return {name: own_array(array) for name, array in arrays.items()}


def keep(state: RecordDict, record: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put arrays into a node's state; they are shared, not copied."""
    flat = {name: FlatArray(np.asarray(array)) for name, array in arrays.items()}
    state[record] = filled(ArrayRecord, flat)


@lru_cache(maxsize=16)
def fingerprint(layout: Layout) -> bytes:
    """Return an 8-byte hash of the tensors' names and shapes."""
    return xxh3_64_digest(repr((layout.names, layout.shapes)).encode())


def left_out(layout: Layout, tied: Mapping[str, str]) -> Layout:
    """Return a layout without the tied tensors, which are copies of others, by name."""
    if not tied:
        return layout
    return layout.without([t for t, name in enumerate(layout.names) if name in tied])


def _trained(codec: Codec, layout: Layout) -> Layout:
    """Return the layout of the tensors that the codec's memory covers: all but exact ones."""
    return layout.without(codec.exact_tensors(layout))


class NodeState:
    """A node's codec memory, and its last reply until the server confirms that it was applied.

    `save` writes everything back to the node's state.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self.memory: Memory = kept(state, MEMORY)
        last = self.memory.pop(_LAST, None)
        self.last: Buffer | None = None if last is None else last.data
        numbers = cast(ConfigRecord, state.get(NUMBERS, ConfigRecord()))
        self.sequence = cast(int, numbers.get("sequence", 0))  # of the last reply
        self._tensors = numbers.get("tensors")  # fingerprint of the tensors that the memory covers
        said = cast(list[str], numbers.get("tied", []))
        # Copies that the memory leaves out, and their sources.
        self._tied = dict(zip(said[::2], said[1::2], strict=True))

    def save(self) -> None:
        """Put everything into the node's state."""
        last = {} if self.last is None else {_LAST: np.frombuffer(self.last, dtype=np.uint8)}
        keep(self._state, MEMORY, {**self.memory, **last})
        numbers: dict[str, object] = {"sequence": self.sequence, "tensors": self._tensors}
        if self._tied:
            numbers["tied"] = [name for pair in self._tied.items() for name in pair]
        self._state[NUMBERS] = filled(ConfigRecord, numbers)

    def may_tie(self, layout: Layout, name: str, source: str) -> bool:
        """Return whether a copy may be left out: the memory holds no residual of its own for it.

        `layout`: the layout of all tensors.
        """
        kept = bool(self.memory) or self.last is not None
        there = kept and self._tensors == fingerprint(layout)
        return not there or self._tied.get(name) == source

    def _expect(self, layout: Layout) -> None:
        """Drop a memory of other tensors than these: there is nothing to add it to."""
        tensors = fingerprint(layout)
        if self.memory and self._tensors != tensors:
            log.warning("the model has other tensors now: what this node kept unsent is dropped")
            self.memory.clear()
            self.last = None
        self._tensors = tensors

    def _untie(self, codec: Codec, layout: Layout, tied: Mapping[str, str]) -> bool:
        """Make the memory cover all tensors except those `tied`; return whether that is a change.

        A tensor that was a copy until now gets its source's residual: both had equal updates.
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
        """Drop the memory: this state ends before reply `applied`, which the server has applied."""
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
        """Return the payload of the next reply, whose number is then `sequence`; save the state.

        `layout`: the layout of all tensors. `update`: the vector without the tensors `tied`.
        `tied`: names of copies, each with its source's name, as `may_tie` allows.
        `applied`: the number of this node's last reply that is in the server's model (0: none). If
        it is not the last reply sent, the last reply is first added back to the memory. So nothing
        is lost, and a payload never builds on one that the server lacks. A number above `sequence`
        means that this state was lost, or is an old copy. The memory would then still contain what
        was sent meanwhile, so it starts anew, and `sequence` continues from the server's number.
        None: not known yet; the last reply is never added back. Errors as in `Codec.encode`.
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
