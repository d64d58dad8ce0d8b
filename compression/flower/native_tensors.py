"""Encodes and decodes native tensors: tensors in their own dtype beside a model's flat vector.

Examples are counters, masks and frozen parameters. Most native tensors never change. So a payload
holds only the differences of the native tensors that differ from their initial values. A checksum
shows whether server and node have the same initial values. The initial values of a node may differ
in the last bits, if its processor computes them differently. So the first message to a node holds
the server's initial values, except those of frozen parameters. These may be as large as the model,
and are sent only to a node that reports other values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from ..base import Buffer, PayloadError
from ..batchnorm import expect_counts
from ..codec import Codec
from ..decoder import Update, decode_update
from ..layout import Layout
from ..make import make_codec
from ..native_differences import decode_differences, encode_differences
from ..wire import DIFFERENCES
from ..wire_natives import NativeTensor
from .headers import HEALS, DownlinkHeader
from .node.state import store_arrays, stored_arrays
from .records import STYPE, FlatArray, array_of, filled, records, values_of

Arrays = dict[str, NDArray[Any]]
NATIVE, INITIAL = "native", "initial"  # names of payloads: of changed, and of initial tensors
KEPT = "edgewire-initial"  # the record in a node's state with the server's initial values
VECTOR = "local:"  # prefix of the names of a local algorithm's vectors
PREFIX = "native:"  # prefix of the names of native tensors in a record with a flat vector
# Prefix of an error after which the server sends its initial values.
OTHER_INITIAL = "this node's model begins with other frozen parameters or constants"
EXACT = make_codec()
NOTHING = Layout((), (), ())
EMPTY = np.empty(0, np.float32)


class LocalVectors(NamedTuple):
    """The vectors of a local algorithm, which travel beside a model as native tensors.

    Each is float32 (n,), for n trained parameters, and all are 0 at the start of a run. `layout`:
    the layout of all of them, one after the other. `codec`: encodes them without a residual.
    `nodes`: the number of all nodes, if the server's vectors are means over all nodes; 0: they are
    means of the reports. `share`: the share of the nodes that train in a round.
    """

    names: tuple[str, ...]
    layout: Layout
    codec: Codec
    nodes: int = 0
    share: float = 1.0

    @classmethod
    def of(cls, names: Sequence[str], trained: Layout, codec: Codec) -> LocalVectors:
        """Return the vectors `names` of a model whose trained parameters have a layout."""
        return cls(
            tuple(f"{VECTOR}{name}" for name in names),
            Layout(
                tuple(f"{name}/{tensor}" for name in names for tensor in trained.names),
                trained.shapes * len(names),
                trained.dtypes * len(names),
            ),
            codec,
        )

    @property
    def zeros(self) -> Arrays:
        """The vectors at the start of a run, by name."""
        size = self.layout.size // max(len(self.names), 1)
        return {name: np.zeros(size, np.float32) for name in self.names}


NO_VECTORS = LocalVectors((), NOTHING, EXACT)


class Initial:
    """The values of native tensors at the start of a run, by name; the object never changes.

    `frozen`: the names of those that are frozen parameters, or statistics of frozen layers. They do
    not change, so they are not counted as bytes that Flower would send. `vectors`: the vectors of
    the local algorithm, which are native tensors, too.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        frozen: Collection[str] = (),
        vectors: LocalVectors = NO_VECTORS,
    ) -> None:
        self.frozen, self.vectors = frozenset(frozen), vectors
        arrays = {**arrays, **vectors.zeros}
        self.arrays: Arrays = {name: np.array(array) for name, array in arrays.items()}
        self.layout = Layout(
            tuple(self.arrays),
            tuple(array.shape for array in self.arrays.values()),
            tuple(array.dtype.name for array in self.arrays.values()),
        )

    @cached_property
    def checksum(self) -> bytes:
        """8-byte xxh3 checksum of the native tensors' names, shapes, dtypes and exact values."""
        found = xxh3_64(repr((self.layout.names, self.layout.shapes, self.layout.dtypes)).encode())
        for array in self.arrays.values():
            found.update(_bytes_of(array).data)
        return found.digest()

    @cached_property
    def whole(self) -> bytes:
        """The payload with the initial values of all native tensors, except vectors of zeros."""
        return self._packed({n: a for n, a in self.arrays.items() if n not in self.vectors.names})

    @cached_property
    def unfrozen(self) -> bytes:
        """The payload that `whole` is, without frozen parameters."""
        without = self.frozen.union(self.vectors.names)
        return self._packed({n: a for n, a in self.arrays.items() if n not in without})

    def payload(self, arrays: Mapping[str, NDArray[Any]]) -> bytes:
        """Encode the native tensors that differ from their initial values, as differences.

        The payload is empty if no tensor differs. It holds the values if vectors have a lossy
        codec, or if a tensor has another shape or dtype than initially, which nodes refuse.
        """
        now = differing(arrays, self.arrays)
        lossy = self.vectors.names and not self.vectors.codec.exact
        if not now or lossy or any(_kind(now[n]) != _kind(self.arrays[n]) for n in now):
            return self._packed(now)
        return encode_differences(now, self.arrays, self.layout, self.checksum)

    def _packed(self, arrays: Mapping[str, NDArray[Any]]) -> bytes:
        if not arrays:
            return b""
        places = {name: place for place, name in enumerate(self.layout.names)}
        names, layout, codec, *_ = self.vectors
        coded = not codec.exact and any(name in arrays for name in names)
        own = [
            NativeTensor(places[name], name, array)
            for name, array in arrays.items()
            if not (coded and name in names)
        ]
        if not coded:
            return EXACT.encode(EMPTY, NOTHING, own=own)
        vector = np.concatenate([arrays.get(name, self.arrays[name]) for name in names])
        # The values themselves seed the rounding, because a payload has no number here.
        return codec.encode(vector, layout, own=own, seed=xxh3_64_intdigest(vector.data))

    def all(self, payload: Buffer | None) -> Arrays:
        """Return all native tensors by name, initial ones if a payload lacks them (see `read`)."""
        return {**self.arrays, **self.read(payload)}

    def read(self, payload: Buffer | None) -> Arrays:
        """Decode the native tensors in a payload, by name; without a payload, return {}.

        Raises `PayloadError` for a tensor with another name, shape or dtype than the initial
        tensors, for differences from other initial values, and for a BatchNorm counter of
        mini-batches below 0.
        """
        if not payload:
            return {}
        layout = self.layout
        if memoryview(payload)[:1] == DIFFERENCES:
            own = decode_differences(payload, self.arrays, layout, self.checksum)
            expect_counts(own)
            return {each.name: each.array for each in own}
        tensors = list(zip(layout.names, layout.shapes, layout.dtypes, strict=True))
        size = sum(math.prod(d for d in shape if d) for shape in layout.shapes)
        most = len(layout) + len(self.vectors.layout)
        update = decode_update(payload, max_size=size, max_tensors=most)
        expect_counts(update.own)
        found = self._vectors(update) if len(update.layout) else {}
        for place, name, array in update.own:
            told = name, array.shape, array.dtype.name
            if place >= len(layout) or told != tensors[place]:
                raise PayloadError(f"the model has no native tensor {name[:80]} {told[1:]}")
            found[name] = array
        return found

    def _vectors(self, update: Update) -> Arrays:
        """Return the vectors of the local algorithm that an update holds, by name."""
        names, layout, codec, *_ = self.vectors
        if codec.exact or update.layout.shapes != layout.shapes or update.indices is not None:
            raise PayloadError("native tensors come in another part of the payload")
        return dict(zip(names, np.split(update.values, len(names)), strict=True))


def native_bytes(initial: Initial | None) -> int:
    """Return the bytes of native tensors as Flower sends them, without frozen parameters."""
    if initial is None:
        return 0
    sent = (array for name, array in initial.arrays.items() if name not in initial.frozen)
    return sum(len(Array(array).data) for array in sent)


def differing(arrays: Mapping[str, NDArray[Any]], base: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays that differ in any bit from those in `base`, in the order of `base`."""
    return {name: arrays[name] for name in base if not _same(arrays[name], base[name])}


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one is other:
        return True
    return _kind(one) == _kind(other) and np.array_equal(_bytes_of(one), _bytes_of(other))


def _kind(array: NDArray[Any]) -> tuple[object, ...]:
    return array.shape, array.dtype


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class ByKind(NamedTuple):
    """A number for the native tensors that are floats, and one for those of other types."""

    floats: float = 1.0
    others: float = 1.0


def distances(now: Mapping[str, NDArray[Any]], start: Mapping[str, NDArray[Any]]) -> ByKind:
    """Return the L2 norms of the changes of native tensors from `start` to `now`.

    Raises `PayloadError` for a float that is infinite or NaN in `now` but finite in `start`.
    """
    found = {True: 0.0, False: 0.0}  # by whether the tensors are floats
    for name in now:
        new, old = now[name], start[name]
        if _same(new, old):
            continue
        floats = new.dtype.kind == "f"
        if floats and (np.isfinite(old) & ~np.isfinite(new)).any():
            raise PayloadError(f"its update holds infinity in {name}")
        with np.errstate(over="ignore", invalid="ignore"):
            before = np.where(np.isfinite(old), old, 0)  # a running maximum starts at -infinity
            moved = np.where(new == old, 0.0, new.astype(np.float64) - before)
            found[floats] = math.hypot(found[floats], float(np.linalg.norm(moved)))
    return ByKind(found[True], found[False])


def with_natives(record: ArrayRecord, natives: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return a record that holds a flat vector and native tensors; `record` has the vector."""
    if not natives:
        return record
    named = {f"{PREFIX}{name}": FlatArray(array) for name, array in natives.items()}
    return filled(ArrayRecord, {**record, **named})


def natives_of(record: ArrayRecord) -> Arrays:
    """Return the native tensors in a record with a flat vector, by name."""
    arrays = values_of(record)
    if len(arrays) < 2:
        return {}
    return {
        name.removeprefix(PREFIX): array.vector if isinstance(array, FlatArray) else array.numpy()
        for name, array in arrays.items()
        if name.startswith(PREFIX)
    }


def with_payload(record: ArrayRecord, name: str, payload: bytes) -> ArrayRecord:
    """Return a record with an additional payload, under the name `name`."""
    return filled(ArrayRecord, {**record, name: array_of(payload)})


def native_payload(content: RecordDict) -> bytes | None:
    """Return the payload with native tensors in a reply; None if it has none."""
    for _, record in records(content, ArrayRecord):
        array = record.get(NATIVE)
        if array is not None and array.stype == STYPE and len(record) > 1:
            return bytes(array.data)
    return None


def received(
    arrays: ArrayRecord, header: DownlinkHeader, own: Initial, state: RecordDict
) -> Initial:
    """Return the values that the server's native tensors had at the start of the run.

    `own`: this node's initial native tensors. If the server's differ, they are in the message or in
    this node's state; raises `PayloadError` if they are in neither.
    """
    if not own.arrays and header.initial is None:
        return own
    if not own.arrays or header.initial is None:
        raise PayloadError("this node's model has other tensors than the server's")
    if own.checksum == header.initial:
        return own
    there = stored_arrays(state, KEPT)
    if INITIAL in arrays:
        there |= own.read(arrays[INITIAL].data)
    arrays_there = {name: there.get(name, array) for name, array in own.arrays.items()}
    found = Initial(arrays_there, own.frozen, own.vectors)
    if found.checksum != header.initial:
        raise PayloadError(f"{OTHER_INITIAL} than the server's, whose own {HEALS}")
    store_arrays(state, KEPT, differing(found.arrays, own.arrays))
    return found


NONE = Initial({})  # of a model without native tensors
