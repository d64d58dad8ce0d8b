"""Converts a strategy's state, a dataclass, to bytes and back, without pickle.

The bytes are a safetensors file. The dataclass may hold:

- ints, floats, bools, strings, bytes, None and arrays;
- lists, deques, sets, tuples, dicts, dataclasses and named tuples of allowed values; the fields
  must declare their types;
- Flower's records and messages;
- `Tagged` values, which are saved with a type tag (`edgewire.strategy.run.tagged`).

An array object that occurs twice is stored once, and is again one object after loading.
"""

import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgewire.strategy.run.tagged import FLOWERS, Tagged, from_plain, to_plain

T = TypeVar("T")
HEAD = "state"  # the name of the tensor that holds all values except the arrays, as JSON
PLAIN = (bool, int, float, str, NoneType)
LISTS = (list, deque, set, tuple)


class StateError(ValueError):
    """Raised for bytes that are not a state, or that are the state of another strategy."""


def to_bytes(state: Any, options: Mapping[str, str] | None = None) -> bytes:
    """Convert a strategy's state, a dataclass, to bytes.

    `options`: texts that are saved with the state; `from_bytes` must get the same texts. Raises
    `TypeError` for a value of an unsupported type.
    """
    writer = _Writer()
    head = [type(state).__name__, dict(options or {}), writer.plain(state)]
    plain = json.dumps(head, separators=(",", ":"))
    arrays = {str(place): np.asarray(a, order="C") for place, a in enumerate(writer.arrays)}
    return save({HEAD: np.frombuffer(plain.encode(), np.uint8), **arrays})


def from_bytes(kind: type[T], data: bytes, options: Mapping[str, str] | None = None) -> T:
    """Convert the result of `to_bytes` back to a dataclass of the type `kind`.

    The arrays in it are writable copies. Raises `StateError` for bytes that are not a state, and
    for a state saved with other `options`.
    """
    try:
        arrays = {name: array.copy() for name, array in load(bytes(data)).items()}
        name, bound, plain = json.loads(arrays.pop(HEAD).tobytes())
        others = {k: v for k, v in dict(bound).items() if v != (options or {}).get(k)}
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise StateError(f"these bytes hold no strategy's state: {error}") from error
    if name != kind.__name__:
        raise StateError(f"these bytes hold a {name}, not a {kind.__name__}")
    if others:
        text = ", ".join(f"{key}={value}" for key, value in others.items())
        raise StateError(f"the state is of a strategy with {text}, which this one has not")
    try:
        return cast(T, _from_plain(kind, plain, arrays))
    except (TypeError, KeyError, ValueError) as error:
        raise StateError(f"the state was saved by another version: {error!r}") from error


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
            return to_plain(value.value, self._placed)
        if isinstance(value, FLOWERS):
            return to_plain(value, self._placed)
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


def _from_plain(kind: Any, plain: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Convert the result of `_Writer.plain` back to a value of the type `kind`.

    `arrays`: the arrays by their position, as text.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if plain is None and NoneType in args:
            return None
        (kind,) = (each for each in args if each is not NoneType)
        return _from_plain(kind, plain, arrays)
    if origin in (np.ndarray, NDArray):  # since NumPy 2.5 the origin is NDArray itself
        return arrays[str(plain)]
    if kind is Tagged:
        return Tagged(from_plain(plain, arrays))
    if kind in FLOWERS:
        found = from_plain(plain, arrays)
        if not isinstance(found, kind):
            raise TypeError(f"{type(found).__name__} is no {kind.__name__}")
        return found
    if kind is bytes:
        return arrays[str(plain)].tobytes()
    if kind in PLAIN:
        if not isinstance(plain, kind) and not (kind is float and type(plain) is int):
            raise TypeError(f"{plain!r} is no {kind.__name__}")
        return plain
    if origin in (dict, Counter):
        key, value = args if origin is dict else (args[0], int)
        pairs = ((_from_plain(key, k, arrays), _from_plain(value, v, arrays)) for k, v in plain)
        return origin(pairs) if origin is dict else Counter(dict(pairs))
    if origin is tuple and args[-1] is not Ellipsis:
        return tuple(_from_plain(each, v, arrays) for each, v in zip(args, plain, strict=True))
    if origin in LISTS:
        return origin(_from_plain(args[0], each, arrays) for each in plain)
    hints = get_type_hints(kind)  # a dataclass, or a named tuple
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    values = {n: _from_plain(hints[n], v, arrays) for n, v in zip(names, plain, strict=True)}
    return kind(**values)
