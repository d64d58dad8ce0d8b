"""Converts values without a declared type, such as Flower's records, to JSON with type tags.

In the states of EdgeWire's strategies, the fields declare their types, from which
`edgewire.strategy.run.serialization` restores the values. The attributes of Flower's and users'
strategies have no declared types, so each value is saved with a tag.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from numpy.typing import NDArray

from edgewire.compression.flower.records import FlatArray, filled

Arrays = Mapping[str, NDArray[Any]]
Place = Callable[[bytes | NDArray[Any]], int]  # stores bytes or an array; returns its number
PLAIN = (bool, int, float, str, type(None))
KINDS: dict[str, Any] = {
    "content": RecordDict,
    "arrays": ArrayRecord,
    "metrics": MetricRecord,
    "config": ConfigRecord,
}
FLOWERS = (*KINDS.values(), Array, Message)
LISTS: dict[str, Any] = {each.__name__: each for each in (list, tuple, set, frozenset)}
AS_ARRAYS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "array": lambda array: array,
    "scalar": lambda array: array[()],
    "flat": FlatArray,
    "bytes": lambda array: array.tobytes(),
}
ABOUT = (
    "run_id",
    "message_id",
    "src_node_id",
    "dst_node_id",
    "reply_to_message_id",
    "group_id",
    "created_at",
    "ttl",
    "message_type",
)  # a message's fields, by the names of the arguments of `Metadata`


class Tagged(NamedTuple):
    """A value that is saved with a type tag, because no field declares its type."""

    value: Any


def to_plain(value: Any, place: Place) -> Any:
    """Return a value as lists for JSON, with type tags; raises `TypeError` for other types.

    `place`: a function that stores bytes or an array elsewhere and returns a number for it.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return ["scalar", place(np.asarray(value))]
    if isinstance(value, bytes):
        return ["hex", value.hex()] if len(value) < 64 else ["bytes", place(value)]
    if type(value) is np.ndarray:
        return ["array", place(value)]
    if isinstance(value, FlatArray):
        return ["flat", place(value.vector)]
    if isinstance(value, Array):
        return ["Array", value.dtype, list(value.shape), value.stype, place(value.data)]
    if isinstance(value, Message):
        return _message(value, place)
    for word, kind in KINDS.items():
        if isinstance(value, kind):
            return [word, [[key, to_plain(each, place)] for key, each in value.items()]]
    if type(value) is dict:
        return ["dict", [[to_plain(k, place), to_plain(v, place)] for k, v in value.items()]]
    if LISTS.get(type(value).__name__) is type(value):
        return [type(value).__name__, [to_plain(each, place) for each in value]]
    raise TypeError(f"a state cannot hold {type(value).__module__}.{type(value).__qualname__}")


def from_plain(plain: Any, arrays: Arrays) -> Any:
    """Convert the result of `to_plain` back to the value; `arrays`: the stored arrays by number.

    Raises `TypeError`, `KeyError` or `ValueError` for any other input.
    """
    if isinstance(plain, PLAIN):
        return plain
    word, *rest = plain
    if word in AS_ARRAYS:
        return AS_ARRAYS[word](arrays[str(rest[0])])
    if word == "hex":
        return bytes.fromhex(rest[0])
    if word == "Array":
        dtype, shape, stype, at = rest
        return Array(dtype, tuple(shape), stype, arrays[str(at)].tobytes())
    if word == "message":
        return _message_from_plain(rest[0], rest[1], rest[2], arrays)
    if word in KINDS:
        return filled(KINDS[word], {key: from_plain(each, arrays) for key, each in rest[0]})
    if word == "dict":
        return {from_plain(k, arrays): from_plain(v, arrays) for k, v in rest[0]}
    return LISTS[word](from_plain(each, arrays) for each in rest[0])


def _message(message: Message, place: Place) -> Any:
    about = [getattr(message.metadata, name) for name in ABOUT]
    if message.has_error():
        return ["message", about, None, [message.error.code, message.error.reason]]
    return ["message", about, to_plain(message.content, place), None]


def _message_from_plain(about: list[Any], content: Any, error: Any, arrays: Arrays) -> Message:
    metadata = Metadata(**dict(zip(ABOUT, about, strict=True)))
    if error is not None:
        return Message(Error(*error), metadata=metadata)  # type: ignore[call-overload,no-any-return]
    return Message(from_plain(content, arrays), metadata=metadata)  # type: ignore[call-overload,no-any-return]
