"""Puts a model into Flower's records as named Arrays, one flat vector, or one payload."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..base import PayloadError
from ..layout import Layout
from .message_size import CARRIER

Vector = NDArray[np.float32]
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)
Filled = TypeVar("Filled", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)
NUMPY = "numpy.ndarray"  # an Array of this kind holds an .npy file
STYPE = "edgewire.payload"  # an Array of this kind holds a payload, not an .npy file
FLAT = "flat"  # the name of the Array that holds a whole model as a flat vector
UPDATE = "update"  # the name of the Array that holds an update, which the server subtracts
MOST_DIMENSIONS, MOST_BYTES = 32, 1 << 62  # limits of the arrays that numpy can make
READERS: dict[tuple[int, int], Any] = {  # readers of an .npy file's header, by its version
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,
}
# The most characters of an .npy file's header. numpy gives the header to Python's parser. A header
# of 32 dimensions has 700 characters. The parser needs 600 kB of memory for 9,000 consecutive minus
# signs.
LONGEST_HEADER = 1024
# A record of a node's state that lasts as long as the node's process, and is never written to a
# disk: it holds keys. If it has a value `UNSTORED`, the reply holds keys too.
VOLATILE, UNSTORED = "edgewire-volatile", "unstored"
LONGEST_TYPE = 64  # the most characters of a type's name; numpy's names have up to 10
AnyRecord = ArrayRecord | ConfigRecord | MetricRecord | RecordDict
# Returns the dict in which a record stores its values, without Flower's checks. A record's own
# methods take five Python calls for each value, and a step of synchronous averaging reads sixty
# values. A caller that changes the dict ensures that the values are valid.
values_of: Callable[[AnyRecord], dict[str, Any]] = attrgetter("_data")
# Returns the dict in which a message stores its metadata, such as `_message_id`. Two properties of
# Flower's take four calls for each value.
metadata_of: Callable[[Message], dict[str, Any]] = attrgetter("_metadata.__dict__")
# Returns the content of a message that is not an error, without Flower's check of that.
content_of: Callable[[Message], RecordDict] = attrgetter("_content")
NO_ARRAYS: dict[str, NDArray[Any]] = {}
_empty: dict[type, dict[str, Any]] = {}  # attributes of an empty record, by the record's class


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # numpy builds the name on each access, 2 µs


class FlatArray(Array):
    """An `Array` over a numpy vector (n,) that serialises to .npy bytes only on demand.

    Within one process the vector is not serialised. `numpy()` returns a copy of the vector, because
    `Array.numpy()` also makes a new array. `vector` is the vector itself; treat it as read-only.
    """

    def __init__(self, vector: NDArray[Any]) -> None:
        self.__dict__.update(
            dtype=_name_of(vector.dtype), shape=vector.shape, stype=NUMPY, vector=vector
        )

    def __getattr__(self, name: str) -> Any:
        if name != "data":
            raise AttributeError(name)
        buffer = BytesIO()
        np.save(buffer, self.vector, allow_pickle=False)
        return buffer.getvalue()

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the vector."""
        copy: NDArray[Any] = self.vector.copy()
        return copy

    def deflate(self) -> bytes:
        """Return the serialised bytes of a plain `Array` with the same values."""
        return bytes(Array(self.vector).deflate())

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatArray, (self.vector,)


def filled(kind: type[Filled], values: Mapping[str, Any]) -> Filled:
    """Return a record of class `kind` with these values, without Flower's check of each value.

    The caller ensures that the values are valid. A check takes 2.5 µs, and one step of synchronous
    averaging sets twenty values. Flower also takes 2.5 µs to make an empty record.
    """
    if kind not in _empty:
        _empty[kind] = dict(kind().__dict__)
    record = kind.__new__(kind)
    record.__dict__ = {**_empty[kind], "_data": dict(values)}
    return record


def flat_record(vector: Vector) -> ArrayRecord:
    """Return an ArrayRecord with one Array, the whole model as float32 (n,)."""
    return filled(ArrayRecord, {FLAT: FlatArray(vector)})


def update_record(vector: Vector) -> ArrayRecord:
    """Return an ArrayRecord with one Array, an update float32 (n,) that the app computed."""
    return filled(ArrayRecord, {UPDATE: FlatArray(vector)})


def update_of(arrays: ArrayRecord) -> Vector | None:
    """Return the update in a record that `update_record` made; None for any other record."""
    array = values_of(arrays).get(UPDATE)
    return array.vector if isinstance(array, FlatArray) else None


def layout_of(arrays: ArrayRecord) -> Layout:
    """Return the layout of an ArrayRecord's arrays, in the record's order."""
    return Layout(
        tuple(arrays),
        tuple(tuple(a.shape) for a in arrays.values()),
        tuple(type_of(a) for a in arrays.values()),
    )


def type_of(array: Array) -> str:
    """Return the name of an array's type without its byte order."""
    if len(array.dtype) > LONGEST_TYPE:
        return array.dtype
    try:
        return np.dtype(array.dtype).name
    except Exception:  # numpy parses commas and numbers in the name, and may raise anything
        return array.dtype


def to_vector(arrays: ArrayRecord, layout: Layout | None = None) -> Vector:
    """Concatenate all arrays to float32 (n,); a `FlatArray` is returned without a copy.

    Raises `PayloadError` if the names or sizes differ from `layout`.
    """
    flat = values_of(arrays).get(FLAT)
    if isinstance(flat, FlatArray):  # other Arrays may hold native tensors
        return flat.vector  # type: ignore[no-any-return]
    if len(arrays) == 1 and isinstance(only := next(iter(arrays.values())), FlatArray):
        return only.vector  # type: ignore[no-any-return]
    names = layout.names if layout is not None else tuple(arrays)
    if set(names) != set(arrays):
        raise PayloadError(f"arrays do not match the model: got {sorted(arrays)}")
    parts = [np.asarray(arrays[name].numpy(), dtype=np.float32).reshape(-1) for name in names]
    vector: Vector = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if layout is not None and vector.size != layout.size:
        raise PayloadError(f"arrays hold {vector.size} values, the model has {layout.size}")
    return vector


def to_arrays(
    vector: Vector, layout: Layout, natives: Mapping[str, NDArray[Any]] = NO_ARRAYS
) -> ArrayRecord:
    """Return one named Array per tensor, in the tensor's dtype, and then the native tensors.

    Values of integer tensors are rounded.
    """
    record, offsets = ArrayRecord(), layout.offsets
    for i, (name, shape, dtype) in enumerate(
        zip(layout.names, layout.shapes, layout.dtypes, strict=True)
    ):
        values = vector[offsets[i] : offsets[i + 1]].reshape(shape)
        if not np.issubdtype(dtype, np.floating):
            values = np.rint(values)
        record[name] = Array(np.asarray(values, dtype=dtype))  # rint makes a 0-d array a scalar
    for name, array in natives.items():
        record[name] = Array(array)
    return record


def payload_record(payload: bytes) -> ArrayRecord:
    """Return an ArrayRecord with one Array, which holds a payload."""
    return filled(ArrayRecord, {"payload": array_of(payload)})


def payload_records(payloads: Mapping[str, bytes]) -> ArrayRecord:
    """Return an ArrayRecord with one Array per payload."""
    return filled(ArrayRecord, {name: array_of(p) for name, p in payloads.items()})


def array_of(payload: bytes, kind: str = STYPE) -> Array:
    """Return an Array that holds a payload; Flower's constructor takes 23 calls."""
    array = Array.__new__(Array)
    array.__dict__.update(dtype="uint8", shape=(len(payload),), stype=kind, data=payload)
    return array


def payload_of(content: RecordDict) -> tuple[str, bytes] | None:
    """Return the name of the first record with a payload, and this payload; None without one."""
    for name, record in content.__dict__["_data"].items():
        if ArrayRecord in type(record).__mro__:
            for array in values_of(record).values():
                if array.stype == STYPE:
                    return name, array.data
    return None


def payloads_in(content: RecordDict) -> int:
    """Return how many payloads a message holds, also if its records are in compact form."""
    return sum(
        array.stype in (STYPE, CARRIER)
        for _, record in records(content, ArrayRecord)
        for array in values_of(record).values()
    )


def expect_readable(content: RecordDict) -> None:
    """Raise `PayloadError` if a plain Array's bytes differ from the shape and type it declares.

    This check comes before numpy reads the bytes, because numpy allocates as much memory as the
    .npy header declares. Flower's old API makes Arrays without shape and type; for these only the
    .npy header is checked.
    """
    for _, record in records(content, ArrayRecord):
        for name, array in values_of(record).items():
            if array.stype == NUMPY and not isinstance(array, FlatArray):
                _expect_readable(name, array)


def _expect_readable(name: str, array: Array) -> None:
    stream = BytesIO(array.data)
    try:
        version = npy.read_magic(stream)
        shape, _, dtype = READERS[version](stream, max_header_size=LONGEST_HEADER)
    except Exception as error:  # numpy evaluates the header as Python: it may raise anything
        raise PayloadError(f"its array {name[:80]!r} is no array of numpy's") from error
    left = len(array.data) - stream.tell()
    if dtype.hasobject or not _can_be(shape, dtype) or left != math.prod(shape) * dtype.itemsize:
        raise PayloadError(f"its array {name[:80]!r} does not hold what it declares")
    says_nothing = not array.dtype and not array.shape
    if not says_nothing and (tuple(array.shape), type_of(array)) != (shape, dtype.name):
        raise PayloadError(f"its array {name[:80]!r} is not of the shape and type that it says")


def _can_be(shape: tuple[Any, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether numpy can make an array of this shape, with entries of more than 0 bytes.

    numpy's reader accepts True as a dimension. The product of two negative dimensions is positive,
    and a product with a 0 does not show that the other dimensions are too large.
    """
    known = len(shape) <= MOST_DIMENSIONS and all(type(d) is int and d >= 0 for d in shape)
    return known and 0 < dtype.itemsize * math.prod(d or 1 for d in shape) < MOST_BYTES


def records(content: RecordDict, kind: type[Record]) -> list[tuple[str, Record]]:
    """Return the records of one kind with their names.

    RecordDict's `array_records` builds a checked dict on each access (40 µs). `isinstance` takes
    two calls, because Flower's records have an abstract base class.
    """
    values = content.__dict__["_data"].items()
    return [(name, record) for name, record in values if kind in type(record).__mro__]


def message_to(node: int, content: RecordDict, group: str, like: Message) -> Message:
    """Return a new message to a node, of the type of `like`, which has not been sent.

    Flower's constructor takes 55 calls, mainly checks of its arguments. `group`: its `group_id`.
    """
    metadata = Metadata.__new__(Metadata)
    metadata.__dict__ = {
        **metadata_of(like),
        "_dst_node_id": node,
        "_group_id": group,
        "_created_at": time.time(),
    }
    return made_message(metadata, content)


def reply_to(message: Message, content: RecordDict) -> Message:
    """Return the reply to a message, as `Message(content, reply_to=message)` in fewer calls.

    The reply has the times of the message, so it is valid for as long, whatever this clock says.
    """
    asked = metadata_of(message)
    metadata = Metadata.__new__(Metadata)
    metadata.__dict__ = {
        **asked,
        "_message_id": "",
        "_src_node_id": asked["_dst_node_id"],
        "_dst_node_id": asked["_src_node_id"],
        "_reply_to_message_id": asked["_message_id"],
        "_delivered_at": "",
    }
    if "_src_task_id" in asked:  # earlier versions of Flower have no tasks
        metadata.__dict__.update(
            _src_task_id=asked["_dst_task_id"], _dst_task_id=asked["_src_task_id"]
        )
    return made_message(metadata, content)


def with_content(
    message: Message, content: RecordDict | None, error: Error | None = None
) -> Message:
    """Return a message with another content or error, and with the metadata of `message`."""
    return made_message(message.__dict__["_metadata"], content, error)


def made_message(
    metadata: Metadata, content: RecordDict | None, error: Error | None = None
) -> Message:
    """Return a message without the checks of Flower's constructor, which take sixty calls."""
    message = Message.__new__(Message)
    message.__dict__ = {"_metadata": metadata, "_content": content, "_error": error}
    return message
