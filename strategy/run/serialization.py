"""Converts a strategy's state, a dataclass, to bytes and back, without pickle.

The bytes are a safetensors file. The dataclass may hold:

- ints, floats, bools, strings, bytes, None, arrays and NumPy's numbers;
- lists, deques, sets, tuples, dicts and counters of allowed values;
- Flower's records and messages;
- dataclasses and named tuples of allowed values, if the types that the fields declare name them.

An array object that occurs twice is stored once, and is again one object after loading.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgewire.compression.flower.records import FlatArray, filled, made_message

T = TypeVar("T")
HEAD = "state"  # the name of the tensor that holds all values except the arrays, as JSON
PLAIN = (bool, int, float, str, NoneType)
KINDS: dict[str, Any] = {
    "content": RecordDict,
    "arrays": ArrayRecord,
    "metrics": MetricRecord,
    "config": ConfigRecord,
}
LISTS: dict[str, Any] = {each.__name__: each for each in (list, tuple, set, frozenset, deque)}
DICTS: dict[str, Any] = {each.__name__: each for each in (dict, Counter)}
AS_ARRAYS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "array": lambda array: array,
    "flat": FlatArray,
    "bytes": lambda array: array.tobytes(),
}
ABOUT = tuple(signature(Metadata).parameters)  # the fields of a message's metadata


class StateError(ValueError):
    """Raised for bytes that are not a state, or that are the state of another strategy."""


def to_bytes(state: Any) -> bytes:
    """Convert a strategy's state, a dataclass, to bytes.

    Raises `TypeError` for a value of an unsupported type.
    """
    writer = _Writer(CLASSES(type(state)))
    plain = json.dumps(writer.tagged(state), separators=(",", ":"))
    arrays = {str(place): np.asarray(a, order="C") for place, a in enumerate(writer.arrays)}
    return save({HEAD: np.frombuffer(plain.encode(), np.uint8), **arrays})


def from_bytes(kind: type[T], data: bytes) -> T:
    """Convert the result of `to_bytes` back to a dataclass of the type `kind`.

    The arrays in it are writable copies. Raises `StateError` for bytes that are not such a state.
    """
    try:
        arrays = {name: array.copy() for name, array in load(bytes(data)).items()}
        name, *values = json.loads(arrays.pop(HEAD).tobytes())
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise StateError(f"these bytes hold no strategy's state: {error}") from error
    if name != kind.__name__:
        raise StateError(f"these bytes hold a {name}, not a {kind.__name__}")
    try:
        return cast(T, _Reader(arrays, CLASSES(kind)).tagged([name, *values]))
    except (TypeError, KeyError, ValueError) as error:
        raise StateError(f"the state was saved by another version: {error!r}") from error


def expect_savable(value: Any) -> None:
    """Raise `TypeError` for a value that a state cannot hold."""
    _Writer({}).tagged(value)


def _classes_in(kind: Any) -> dict[str, type]:
    """Return the dataclasses and named tuples in a type, also in those of their fields, by name."""
    found = dict[str, type]()
    kinds = [kind]
    for each in kinds:
        kinds += get_args(each)
        if not isinstance(each, type) or not (is_dataclass(each) or hasattr(each, "_fields")):
            continue
        if each.__name__ not in found:
            kinds += get_type_hints(each).values()
        if found.setdefault(each.__name__, each) is not each:
            raise TypeError(f"two classes are named {each.__name__}")
    return found


# The checkpoints of a run have the same classes.
CLASSES: Callable[[Any], dict[str, type]] = cache(_classes_in)


def _names_in(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)] if is_dataclass(kind) else list(kind._fields)


class _Writer:
    """Converts values to lists for JSON; puts each array once into `arrays`, for a binary file.

    `classes`: the dataclasses and named tuples that a reader knows, by name.
    """

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self.arrays: list[NDArray[Any]] = []
        self._places: dict[int, int] = {}  # by an array's id(), its position in `arrays`

    def _placed(self, value: bytes | NDArray[Any]) -> int:
        if id(value) not in self._places:
            self._places[id(value)] = len(self.arrays)
            raw = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
            self.arrays.append(raw)
        return self._places[id(value)]

    def tagged(self, value: Any) -> Any:
        """Return a value as lists for JSON, each with its kind first; an array is its position.

        Raises `TypeError` for a value of an unsupported type.
        """
        if type(value) in PLAIN:
            return value
        if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize <= 8:
            return ["scalar", value.dtype.name, value.item()]
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
        kind, name = type(value), type(value).__name__
        if DICTS.get(name) is kind:
            return [name, [[self.tagged(k), self.tagged(v)] for k, v in value.items()]]
        if LISTS.get(name) is kind:
            return [name, [self.tagged(each) for each in value]]
        if self._classes.get(name) is kind:
            return [name, *(self.tagged(getattr(value, each)) for each in _names_in(kind))]
        raise TypeError(f"a state cannot hold {kind.__module__}.{kind.__qualname__}")

    def _message(self, message: Message) -> Any:
        about = [getattr(message.metadata, name) for name in ABOUT]
        if message.has_error():
            return ["message", about, None, [message.error.code, message.error.reason]]
        return ["message", about, self.tagged(message.content), None]


class _Reader:
    """Converts what `_Writer` has made back to values; `arrays`: by their position, as text."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], classes: Mapping[str, type]) -> None:
        self._arrays, self._classes = arrays, classes

    def tagged(self, plain: Any) -> Any:
        """Convert the result of `_Writer.tagged` back to the value.

        Raises `TypeError`, `KeyError` or `ValueError` for any other input.
        """
        if isinstance(plain, PLAIN):
            return plain
        word, *rest = plain
        if word in AS_ARRAYS:
            return AS_ARRAYS[word](self._arrays[str(rest[0])])
        if word == "scalar":
            return np.dtype(rest[0]).type(rest[1])
        if word == "hex":
            return bytes.fromhex(rest[0])
        if word == "Array":
            dtype, shape, stype, at = rest
            return Array(dtype, tuple(shape), stype, self._arrays[str(at)].tobytes())
        if word == "message":
            return self._message(*rest)
        if word in KINDS:
            return filled(KINDS[word], {key: self.tagged(each) for key, each in rest[0]})
        if word in DICTS:
            return DICTS[word]({self.tagged(k): self.tagged(v) for k, v in rest[0]})
        if word in LISTS:
            return LISTS[word](self.tagged(each) for each in rest[0])
        kind = self._classes[word]
        return kind(**dict(zip(_names_in(kind), map(self.tagged, rest), strict=True)))

    def _message(self, about: list[Any], content: Any, error: Any) -> Message:
        metadata = Metadata(**dict(zip(ABOUT, about, strict=True)))
        return made_message(metadata, self.tagged(content), error and Error(*error))
