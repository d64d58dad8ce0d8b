"""Converts a strategy's state, a dataclass, to bytes and back, without pickle.

The bytes are a safetensors file. The dataclass may hold:

- ints, floats, bools, strings, bytes, None and arrays;
- lists, deques, sets, tuples, dicts, dataclasses and named tuples of allowed values; the fields
  must declare their types;
- Flower's records and messages;
- `Tagged` values, which are saved with a type tag. The fields of EdgeWire's states declare their
  types; the attributes of Flower's and users' strategies do not.

An array object that occurs twice is stored once, and is again one object after loading.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgewire.compression.flower.records import FlatArray, filled

T = TypeVar("T")
HEAD = "state"  # the name of the tensor that holds all values except the arrays, as JSON
PLAIN = (bool, int, float, str, NoneType)
LISTS = (list, deque, set, tuple)
KINDS: dict[str, Any] = {
    "content": RecordDict,
    "arrays": ArrayRecord,
    "metrics": MetricRecord,
    "config": ConfigRecord,
}
FLOWERS = (*KINDS.values(), Array, Message)
TAGGED_LISTS: dict[str, Any] = {each.__name__: each for each in (list, tuple, set, frozenset)}
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


class StateError(ValueError):
    """Raised for bytes that are not a state, or that are the state of another strategy."""


def to_bytes(state: Any) -> bytes:
    """Convert a strategy's state, a dataclass, to bytes.

    Raises `TypeError` for a value of an unsupported type.
    """
    writer = _Writer()
    head = [type(state).__name__, writer.plain(state)]
    plain = json.dumps(head, separators=(",", ":"))
    arrays = {str(place): np.asarray(a, order="C") for place, a in enumerate(writer.arrays)}
    return save({HEAD: np.frombuffer(plain.encode(), np.uint8), **arrays})


def from_bytes(kind: type[T], data: bytes) -> T:
    """Convert the result of `to_bytes` back to a dataclass of the type `kind`.

    The arrays in it are writable copies. Raises `StateError` for bytes that are not such a state.
    """
    try:
        arrays = {name: array.copy() for name, array in load(bytes(data)).items()}
        name, plain = json.loads(arrays.pop(HEAD).tobytes())
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise StateError(f"these bytes hold no strategy's state: {error}") from error
    if name != kind.__name__:
        raise StateError(f"these bytes hold a {name}, not a {kind.__name__}")
    try:
        return cast(T, _Reader(arrays).value(kind, plain))
    except (TypeError, KeyError, ValueError) as error:
        raise StateError(f"the state was saved by another version: {error!r}") from error


def expect_savable(value: Any) -> None:
    """Raise `TypeError` for a value that a `Tagged` cannot hold in a state."""
    _Writer().tagged(value)


class _Writer:
    """Converts values to lists for JSON; puts each array once into `arrays`, for a binary file."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._places: dict[int, int] = {}  # by an array's id(), its position in `arrays`
        self._alive: list[Any] = []  # references to the arrays, so that Python does not reuse an id

    def plain(self, value: Any) -> Any:
        """Return a value as lists for JSON; an array becomes its position in `self.arrays`.

        Raises `TypeError` for a value of an unsupported type.
        """
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Tagged):
            return self.tagged(value.value)
        if isinstance(value, FLOWERS):
            return self.tagged(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, bytes | np.ndarray):
            return self._placed(value)
        if is_dataclass(value):
            return [self.plain(getattr(value, field.name)) for field in fields(value)]
        if isinstance(value, Mapping):
            return [[self.plain(k), self.plain(v)] for k, v in value.items()]
        if isinstance(value, LISTS):
            return [
                self.plain(each) for each in (sorted(value) if isinstance(value, set) else value)
            ]
        raise TypeError(f"a state cannot hold {type(value).__name__}")

    def _placed(self, value: bytes | NDArray[Any]) -> int:
        if id(value) not in self._places:
            self._places[id(value)] = len(self.arrays)
            self._alive.append(value)
            raw = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
            self.arrays.append(raw)
        return self._places[id(value)]

    def tagged(self, value: Any) -> Any:
        """Return a value as lists for JSON, with type tags; raises `TypeError` for other types."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, np.generic):
            return ["scalar", self._placed(np.asarray(value))]
        if isinstance(value, bytes):
            return ["hex", value.hex()] if len(value) < 64 else ["bytes", self._placed(value)]
        if type(value) is np.ndarray:
            return ["array", self._placed(value)]
        if isinstance(value, FlatArray):
            return ["flat", self._placed(value.vector)]
        if isinstance(value, Array):
            return ["Array", value.dtype, list(value.shape), value.stype, self._placed(value.data)]
        if isinstance(value, Message):
            return self._message(value)
        for word, kind in KINDS.items():
            if isinstance(value, kind):
                return [word, [[key, self.tagged(each)] for key, each in value.items()]]
        if type(value) is dict:
            return ["dict", [[self.tagged(k), self.tagged(v)] for k, v in value.items()]]
        if TAGGED_LISTS.get(type(value).__name__) is type(value):
            return [type(value).__name__, [self.tagged(each) for each in value]]
        raise TypeError(f"a state cannot hold {type(value).__module__}.{type(value).__qualname__}")

    def _message(self, message: Message) -> Any:
        about = [getattr(message.metadata, name) for name in ABOUT]
        if message.has_error():
            return ["message", about, None, [message.error.code, message.error.reason]]
        return ["message", about, self.tagged(message.content), None]


class _Reader:
    """Converts what `_Writer` has made back to values; `arrays`: by their position, as text."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def value(self, kind: Any, plain: Any) -> Any:
        """Convert the result of `_Writer.plain` back to a value of the type `kind`."""
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            if plain is None and NoneType in args:
                return None
            (kind,) = (each for each in args if each is not NoneType)
            return self.value(kind, plain)
        if origin in (np.ndarray, NDArray):  # since NumPy 2.5 the origin is NDArray itself
            return self._arrays[str(plain)]
        if kind is Tagged:
            return Tagged(self.tagged(plain))
        if kind in FLOWERS:
            found = self.tagged(plain)
            if not isinstance(found, kind):
                raise TypeError(f"{type(found).__name__} is no {kind.__name__}")
            return found
        if kind is bytes:
            return self._arrays[str(plain)].tobytes()
        if kind in PLAIN:
            if not isinstance(plain, kind) and not (kind is float and type(plain) is int):
                raise TypeError(f"{plain!r} is no {kind.__name__}")
            return plain
        if origin in (dict, Counter):
            key, value = args if origin is dict else (args[0], int)
            pairs = ((self.value(key, k), self.value(value, v)) for k, v in plain)
            return origin(pairs) if origin is dict else Counter(dict(pairs))
        if origin is tuple and args[-1] is not Ellipsis:
            return tuple(self.value(each, v) for each, v in zip(args, plain, strict=True))
        if origin in LISTS:
            return origin(self.value(args[0], each) for each in plain)
        hints = get_type_hints(kind)  # a dataclass, or a named tuple
        names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)
        values = {n: self.value(hints[n], v) for n, v in zip(names, plain, strict=True)}
        return kind(**values)

    def tagged(self, plain: Any) -> Any:
        """Convert the result of `_Writer.tagged` back to the value.

        Raises `TypeError`, `KeyError` or `ValueError` for any other input.
        """
        if isinstance(plain, PLAIN):
            return plain
        word, *rest = plain
        if word in AS_ARRAYS:
            return AS_ARRAYS[word](self._arrays[str(rest[0])])
        if word == "hex":
            return bytes.fromhex(rest[0])
        if word == "Array":
            dtype, shape, stype, at = rest
            return Array(dtype, tuple(shape), stype, self._arrays[str(at)].tobytes())
        if word == "message":
            return self._message(*rest)
        if word in KINDS:
            return filled(KINDS[word], {key: self.tagged(each) for key, each in rest[0]})
        if word == "dict":
            return {self.tagged(k): self.tagged(v) for k, v in rest[0]}
        return TAGGED_LISTS[word](self.tagged(each) for each in rest[0])

    def _message(self, about: list[Any], content: Any, error: Any) -> Message:
        metadata = Metadata(**dict(zip(ABOUT, about, strict=True)))
        if error is not None:
            return Message(Error(*error), metadata=metadata)  # type: ignore[call-overload,no-any-return]
        return Message(self.tagged(content), metadata=metadata)  # type: ignore[call-overload,no-any-return]
