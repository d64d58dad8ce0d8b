"""Stores a node's residual, its last reply and their numbers in the node's `Context.state`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from xxhash import xxh3_64_digest

from ...base import Buffer, Memory
from ...codec import Codec
from ...coders.shared_context import Activity, SharedContext
from ...layout import Layout
from ..records import FlatArray, Vector, filled, values_of

MEMORY, NUMBERS = "edgewire-memory", "edgewire-numbers"  # records in the state
PENDING = "edgewire-pending"  # the app's record as the last reply left it, until that was applied
# Entries of MEMORY, in addition to the codec's arrays.
_LAST, _LAST_ACTIVITY = "last-payload", "last-activity"
_NO_COORDINATES = ("loss", "steps")  # entries of MEMORY that hold one number, not one per parameter
Arrays = dict[str, NDArray[Any]]
log = getLogger("edgewire")


def checksum(vector: Vector) -> bytes:
    """Return the 8-byte xxh3 checksum of a model, float32 (n,)."""
    return xxh3_64_digest(np.ascontiguousarray(vector, dtype="<f4").data)


def stored_arrays(state: RecordDict, record: str) -> Arrays:
    """Return the arrays of a record in a node's state; an empty dict if there is no such record.

    The arrays are shared with the state. They are copied if the record came from another process:
    then Flower gives bytes, and Ray gives read-only arrays.
    """
    found = values_of(state).get(record)
    if found is None:
        return {}
    return {
        name: array.vector
        if type(array) is FlatArray and array.vector.flags.writeable
        else array.numpy()
        for name, array in values_of(found).items()
    }


def store_arrays(state: RecordDict, record: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put arrays into a node's state as the record `record`, without a copy."""
    values, flat = values_of(state), dict[str, FlatArray]()
    before = values_of(values[record]) if record in values else {}
    for name, array in arrays.items():
        old = before.get(name)
        if type(old) is FlatArray and old.vector is array:
            flat[name] = old
        else:
            flat[name] = FlatArray(np.asarray(array))
    values[record] = filled(ArrayRecord, flat)


def sequence_of(state: RecordDict) -> int:
    """Return the sequence number of a node's last reply; 0 if there is none."""
    numbers = values_of(state).get(NUMBERS)
    return 0 if numbers is None else int(values_of(numbers).get("sequence", 0))


def take_up(state: RecordDict, record: str, applied: int | None) -> None:
    """Set the app's record `record` to what it was after the node's last applied reply.

    `applied`: the sequence number of that reply; None: it is unknown, and the last reply counts as
    applied. If `applied` is higher than the number in this state, the state was lost or is an old
    copy. Then an empty `ConfigRecord` takes the record's place, until the app stores a new record.
    """
    values = values_of(state)
    after, sequence = values.pop(PENDING, None), sequence_of(state)
    if applied is not None and applied > sequence:
        values[record] = filled(ConfigRecord, {})
    elif after is not None and applied in (None, sequence):
        values[record] = after


@lru_cache(maxsize=16)
def fingerprint(layout: Layout) -> bytes:
    """Return an 8-byte hash of the names and shapes of a layout's tensors."""
    return xxh3_64_digest(repr((layout.names, layout.shapes)).encode())


def left_out(layout: Layout, tied: Mapping[str, str]) -> Layout:
    """Return a layout without the copies `tied`: their names, each with its source's name."""
    return layout.without([t for t, name in enumerate(layout.names) if name in tied])


def _trained(codec: Codec, layout: Layout) -> Layout:
    """Return the layout of the tensors that have a residual."""
    return layout.without(codec.exact_tensors(layout))


class NodeState:
    """The arrays that a node's codec stores, such as a residual, and the node's last reply.

    The arrays are called the memory. The last reply is needed until the server confirms that the
    reply was applied. `save` writes all data back to the node's state.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self.memory: Memory = stored_arrays(state, MEMORY)
        last = self.memory.pop(_LAST, None)
        self.last: Buffer | None = None if last is None else last.data
        # The activity with which the last reply was encoded, if it was coded by context.
        self._activity: Activity | None = self.memory.pop(_LAST_ACTIVITY, None)
        found = values_of(state).get(NUMBERS)
        numbers = values_of(found) if found is not None else {}
        self.sequence: int = numbers.get("sequence", 0)  # of the last reply
        self._tensors = numbers.get("tensors")  # fingerprint of the model that the memory is for
        said: list[str] = numbers.get("tied", [])
        # Names of the copies that have no residual of their own, and of the tensors they equal.
        self._tied = dict(zip(said[::2], said[1::2], strict=True))

    def save(self) -> None:
        """Write all data of this object into the node's `Context.state`."""
        last: Arrays = {}
        if self.last is not None:
            last[_LAST] = np.frombuffer(self.last, dtype=np.uint8)
            if self._activity is not None:
                last[_LAST_ACTIVITY] = self._activity
        store_arrays(self._state, MEMORY, {**self.memory, **last})
        numbers: dict[str, object] = {"sequence": self.sequence, "tensors": self._tensors}
        if self._tied:
            numbers["tied"] = [name for pair in self._tied.items() for name in pair]
        values_of(self._state)[NUMBERS] = filled(ConfigRecord, numbers)

    def may_tie(self, layout: Layout, name: str, source: str) -> bool:
        """Return whether a reply may leave out the copy `name` of the tensor `source`.

        It may unless the copy has a separate residual here. `layout`: the layout of all tensors.
        """
        kept = bool(self.memory) or self.last is not None
        there = kept and self._tensors == fingerprint(layout)
        return not there or self._tied.get(name) == source

    def _expect(self, layout: Layout) -> None:
        """Delete the residual and the last reply if they belong to other tensors than `layout`."""
        tensors = fingerprint(layout)
        if self.memory and self._tensors != tensors:
            log.warning("the model has other tensors now: unsent parts of updates are deleted")
            self.memory.clear()
            self.last = None
        self._tensors = tensors

    def _untie(self, codec: Codec, layout: Layout, tied: Mapping[str, str]) -> bool:
        """Make the residual cover all tensors but the copies `tied`; return whether these changed.

        A tensor that was a copy until now gets the residual of its source, because both had equal
        updates.
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
        """Delete the residual, and number the next replies from `applied` + 1 on."""
        log.warning(
            "this node's state ends with its reply %d, and the server has applied %d: the state "
            "was lost, or is an old copy, so the node's memory starts anew",
            self.sequence,
            applied,
        )
        self.memory.clear()
        self.last = None
        self.sequence = applied
        self.save()  # save at once, because later calls may raise

    def encoded(
        self,
        codec: Codec,
        update: Vector,
        layout: Layout,
        *,
        applied: int | None,
        tied: Mapping[str, str] = {},
        add_back: bool = True,
        context: SharedContext | None = None,
        **options: Any,
    ) -> bytes:
        """Encode an update as the payload of the next reply, and save the state.

        Afterwards `sequence` is the sequence number of this reply. Raises the errors of
        `Codec.encode`.

        `layout`: the layout of all tensors. `tied`: names of the copies to leave out, each with the
        name of its source; `may_tie` must allow each. `update`: the vector without these copies.
        `context`, `options`: the other options of `Codec.encode`.

        `applied`: the sequence number of this node's last applied reply (0: none was applied).

        - If `applied` is lower than `sequence`, the last reply is first added back to the residual.
          So its values are not lost, and the payload does not depend on a reply that the server
          lacks.
        - If `applied` is higher than `sequence`, this state was lost or is an old copy. An old
          residual would still contain values that later replies sent. So the residual is deleted,
          and `sequence` continues from `applied`.
        - If `applied` is None, it is unknown whether the last reply was applied. Then the last
          reply is never added back.

        `add_back`: False if a reply that was not applied is never added back, because the update is
        a momentum, of which the next one holds the most part again.
        """
        self._expect(layout)
        arrived = applied == self.sequence
        if applied is not None and applied > self.sequence:
            self._start_anew(applied)
        if applied is not None and not arrived and self.last is not None:
            before = None if self._activity is None else SharedContext(self._activity)
            if add_back:
                codec.restore(self.last, left_out(layout, self._tied), self.memory, before)
            self.last = None
            self.save()  # save at once, because later calls may raise
        other = self._untie(codec, layout, tied)
        payload = codec.encode(
            update,
            left_out(layout, tied),
            memory=self.memory,
            as_before=arrived and self.sequence > 0 and not other,
            context=context,
            **options,
        )
        self.sequence += 1
        self.last = payload if codec.keeps else None
        self._activity = None if context is None else context.activity.copy()
        self.save()
        return payload
