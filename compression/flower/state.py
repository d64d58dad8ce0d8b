"""What compression keeps of one node, in its `Context.state`: it lives on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from xxhash import xxh3_64_digest

from ..stages import Buffer, Memory, PayloadError
from .arrays import FlatArray, Vector, filled

if TYPE_CHECKING:
    from flwr.app.typing import ConfigRecordValues  # Flower 1.27 has it elsewhere

NOTE = "compression-note"  # the ConfigRecord of a message about what was applied, and what travels
MEMORY, NUMBERS = "compression-memory", "compression-numbers"  # records in the state
HEALS = "will be sent whole next time"  # ends an error that the server answers by doing so
Note: TypeAlias = "dict[str, ConfigRecordValues]"
_REPLICA, _LAST = "replica", "last-payload"  # entries of MEMORY beside the codec's own arrays


def note_of(content: RecordDict) -> Note:
    """Return what a message's note of compression says; empty if it has none.

    `applied` and `sequence`: numbers of a node's replies, from 1; `workers`: of the nodes asked in
    this round; `base` and `version`: names of versions; `exact`: patterns of names of tensors that
    travel in their own type. Raises PayloadError for anything else: it comes from another program.
    """
    record = content.get(NOTE, ConfigRecord())
    if not isinstance(record, ConfigRecord):
        raise PayloadError(f"the record {NOTE!r} must be a ConfigRecord")
    note = dict(record)
    for key, value in note.items():
        if key == "exact" and isinstance(value, list) and all(type(v) is str for v in value):
            continue
        number = type(value) is int and 0 < value < 1 << 62
        name = type(value) is bytes and len(value) == 8
        if not (number if key in ("applied", "sequence", "workers") else name):
            raise PayloadError(f"the record {NOTE!r} holds {value!r} as {key}")
    return note


def checksum(vector: Vector) -> bytes:
    """Return 8 bytes that name a version of the model, float32 (n,)."""
    return xxh3_64_digest(np.ascontiguousarray(vector, dtype="<f4").data)


def own_array(array: Array) -> NDArray[Any]:
    """Return an array that may be written to."""
    if isinstance(array, FlatArray) and array.vector.flags.writeable:
        return array.vector  # type: ignore[no-any-return]
    own: NDArray[Any] = array.numpy()
    return own


class NodeState:
    """A node's memory, its place in the dialogue with the server, and its replica of the model.

    Arrays are shared with the `Context`, not copied; one that has crossed a process boundary is
    copied once: Flower's are bytes, Ray's read-only views. `save` writes everything back.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        arrays = cast(ArrayRecord, state.get(MEMORY, ArrayRecord()))
        self.memory: Memory = {name: own_array(array) for name, array in arrays.items()}
        self.replica: Vector | None = self.memory.pop(_REPLICA, None)
        last = self.memory.pop(_LAST, None)
        self.last: Buffer | None = None if last is None else last.data  # reply not known as applied
        numbers = cast(ConfigRecord, state.get(NUMBERS, ConfigRecord()))
        self.sequence = cast(int, numbers.get("sequence", 0))  # of the last reply

    def save(self) -> None:
        """Put everything into the node's state."""
        arrays = dict(self.memory)
        if self.replica is not None:
            arrays[_REPLICA] = self.replica
        if self.last is not None:
            arrays[_LAST] = np.frombuffer(self.last, dtype=np.uint8)
        flat = {name: FlatArray(array) for name, array in arrays.items()}
        self._state[MEMORY] = filled(ArrayRecord(), flat)
        self._state[NUMBERS] = ConfigRecord({"sequence": self.sequence})
