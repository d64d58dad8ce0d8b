"""Encodes and decodes what nodes send that train parts of a model: tensors, targets, snapshots.

Each node trains one segment of the model, a sequence of consecutive layers. The tensors are
activations and gradients. A snapshot holds a segment's weights and, on request, its optimiser's
state.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewire.compression.base import Buffer, Memory, PayloadError, Vector
from edgewire.compression.batchnorm import expect_counts
from edgewire.compression.codec import Codec
from edgewire.compression.decoder import MAX_SIZE, declared, decode_update
from edgewire.compression.flower.headers import brief
from edgewire.compression.flower.server.acks import OTHER_METHOD
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire import parse
from edgewire.compression.wire_natives import NativeTensor

EXACT = make_codec()
GRADIENTS = "gradients-"  # prefix of a payload's name, before the number of its first mini-batch
# If an error's text begins with one of these, the node that sent the tensors is at fault.
ACTIVATIONS, GRADIENTS_OF = "activations of mini-batch", "gradients of mini-batch"
LARGEST = 1e6  # the largest value allowed; activations of a model that learns stay below it
ERROR = "prediction-error"  # a metric: of a synthetic gradient
REFUSED = "gradients-refused"  # a metric: gradients that a segment could not use
NO_SEGMENT = "this node has no segment"  # begins an error; the server then sends a segment
# Names of a snapshot's tensors. "segment": the segment's weights and statistics. "module": the
# weights of its module for synthetic gradients. "segment KEY", "module KEY": the tensor KEY of the
# optimiser's state. "gradient", "samples": between two micro-batches, the gradient so far and its
# number of samples.
STATE, MODULE, GRADIENT, SAMPLES = "segment", "module", "gradient", "samples"
MOMENTS = 3  # the most tensors per parameter in the state of one of PyTorch's optimisers
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")  # in which targets are sent
Numbers = NDArray[Any]


@lru_cache(maxsize=64)
def _layout(count: int, shape: tuple[int, ...]) -> Layout:
    return Layout(tuple(map(str, range(count))), (shape,) * count, ("float32",) * count)


def pack(
    tensors: Sequence[Numbers],
    codec: Codec,
    *,
    memory: Memory | None = None,
    seed: int = 0,
    number: int = 0,
) -> bytes:
    """Encode contiguous float32 tensors of the same shape; raises the errors of `Codec.encode`."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    vector = flat[0] if len(flat) == 1 else np.concatenate(flat)
    layout = _layout(len(tensors), tuple(tensors[0].shape))
    return codec.encode(vector, layout, memory=memory, seed=seed, number=number)


def unpack(payload: Buffer, count: int, shape: tuple[int, ...], what: str) -> list[Numbers]:
    """Decode `count` float32 tensors of `shape`; they may be read-only views of the payload.

    Raises `PayloadError` for a payload of other tensors, and for absolute values above `LARGEST`.
    The error's text begins with `what`.
    """
    with _errors_of(what):
        vector = decode_update(payload, _layout(count, shape)).dense()
        if vector.size and not -LARGEST <= vector.min() <= vector.max() <= LARGEST:
            raise PayloadError(f"values beyond {LARGEST:g}")
    return list(vector.reshape(count, *shape))


@contextmanager
def _errors_of(what: str) -> Iterator[None]:
    try:
        yield
    except PayloadError as error:
        raise PayloadError(f"{what}: {error}") from error


class TargetTensor(NamedTuple):
    """A tensor of integers that the last segment's node needs for the loss, such as the labels.

    `shape`: the shape of one sample. `dtype`: the integer type, signed beyond 1 byte. `below`: if
    it is above 0, the integers are classes from 0 to `below` - 1. `range`: the least and the
    largest integer, if they are known.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    below: int = 0
    range: tuple[int, int] | None = None

    @property
    def sent(self) -> tuple[str, ...]:
        """The types in which it may be sent; a sender takes the first that holds all values."""
        if self.below:  # always the same type, so that the bytes do not depend on the values
            return ("uint8",) if self.below <= 256 else ("int64",)
        size = np.dtype(self.dtype).itemsize
        return tuple(kind for kind in INTEGERS if np.dtype(kind).itemsize <= size)


def pack_targets(arrays: Sequence[Numbers], tensors: Sequence[TargetTensor]) -> bytes:
    """Encode the targets of mini-batches without loss; each array is (batches, samples, ...)."""
    own = [
        NativeTensor(number, _name(number), array.astype(_smallest(array, tensor.sent)))
        for number, (array, tensor) in enumerate(zip(arrays, tensors, strict=True))
    ]
    return EXACT.encode(np.empty(0, np.float32), Layout((), (), ()), own=own)


def _smallest(array: Numbers, kinds: Sequence[str]) -> str:
    if len(kinds) == 1 or not array.size:
        return kinds[0]
    low, high = array.min(), array.max()
    return next(k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max)


def _name(number: int) -> str:
    return f"labels {number}" if number else "labels"


def expect_tensors(
    payload: Buffer, count: int, shape: tuple[int, ...], what: str, codec: Codec
) -> None:
    """Raise `PayloadError` unless the payload's header describes the tensors that `pack` encodes.

    `count`, `shape`: the number of tensors, and the shape of each. `what`: the start of the error's
    text. No value is decoded.
    """
    layout = _layout(count, shape)
    with _errors_of(what):
        if not codec.made(payload):
            raise PayloadError(OTHER_METHOD)
        parse(payload, layout, MAX_SIZE, exact=codec.exact_tensors(layout))


def unpack_targets(
    payload: Buffer, rows: tuple[int, int], tensors: Sequence[TargetTensor]
) -> list[Numbers]:
    """Decode what `pack_targets` encoded; each array has the dtype of its `TargetTensor`.

    `rows`: the number of mini-batches, and of the samples in each. Raises `PayloadError` for
    tensors of other shapes or types, and for integers out of range.
    """
    shapes = [(*rows, *tensor.shape) for tensor in tensors]
    arrays: list[Numbers] = []
    with _errors_of("labels"):
        most = sum(math.prod(max(d, 1) for d in shape) for shape in shapes)
        found, _ = declared(payload, max_size=most, max_tensors=len(tensors))
        kinds = [
            kind if kind in tensor.sent else tensor.sent[-1]
            for kind, tensor in zip_longest(found.dtypes[: len(tensors)], tensors)
        ]
        layout = Layout(tuple(map(_name, range(len(tensors)))), tuple(shapes), tuple(kinds))
        decoded = decode_update(payload, layout, own=tuple(range(len(tensors))), exact=()).own
        for each, tensor in zip(decoded, tensors, strict=True):
            array = each.array.astype(tensor.dtype)
            bounds = (0, tensor.below - 1) if tensor.below else tensor.range
            if bounds and array.size and not bounds[0] <= array.min() <= array.max() <= bounds[1]:
                raise PayloadError(f"they must be from {bounds[0]} to {bounds[1]}")
            arrays.append(array)
    return arrays


class SnapshotForm(NamedTuple):
    """The tensors that a snapshot of a segment (consecutive layers of a model) may hold.

    `size`: the number of entries in the segment's weights and statistics. `trained`: how many of
    these entries are parameters. `module`: the number of parameters in the segment's module for
    synthetic gradients. `beside`: the shape and dtype of each tensor that is not in the float32
    vector. `samples`: the most samples of a mini-batch.
    """

    size: int
    trained: int
    module: int
    beside: Mapping[str, tuple[tuple[int, ...], str]]
    samples: int

    @property
    def most(self) -> int:
        """The largest number of entries that a snapshot may have."""
        beside = sum(math.prod(d for d in shape if d) for shape, _ in self.beside.values())
        vectors = self.size + self.module + self.trained + MOMENTS * (self.trained + self.module)
        return vectors + beside + 64

    def expect(self, layout: Layout, own: tuple[int, ...], *, whole: bool) -> None:
        """Raise `PayloadError` if a snapshot's tensors are not the tensors of the segment.

        `layout`, `own`: the tensors that the payload declares, as `declared` returns them. `whole`:
        True if the snapshot may also hold the segment's module for synthetic gradients, the
        optimiser's state and a gradient.
        """
        vectors = layout.without(own)
        sizes = {STATE: self.size, MODULE: self.module, GRADIENT: self.trained, SAMPLES: 1}
        moments = {STATE: self.trained, MODULE: self.module}
        for name, shape in zip(vectors.names, vectors.shapes, strict=True):
            of, _, key = name.partition(" ")
            allowed = (moments.get(of), 1) if key else (sizes.get(of),)
            if len(shape) != 1 or shape[0] not in allowed or not (whole or name == STATE):
                raise PayloadError(f"the copy's {brief(name)} has the shape {shape}")
        if STATE not in vectors.names:
            raise PayloadError(f"a copy of the segment must hold its {self.size} values")
        if (GRADIENT in vectors.names) != (SAMPLES in vectors.names):
            raise PayloadError("the copy holds half of an unfinished mini-batch")
        beside = {layout.names[t]: (layout.shapes[t], layout.dtypes[t]) for t in own}
        if beside != self.beside:
            raise PayloadError("the copy's counters and constants are not those of its layers")


def types_of(tensors: Mapping[str, Numbers]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of each tensor by name, for `SnapshotForm.beside`."""
    return {name: (array.shape, array.dtype.name) for name, array in tensors.items()}


def pack_copy(vectors: Mapping[str, Vector], beside: Mapping[str, Numbers]) -> bytes:
    """Encode a snapshot of a segment of the model without loss.

    `vectors`: float32 vectors by name. `beside`: the tensors of other dtypes, by name.
    """
    layout = Layout(
        tuple(vectors), tuple((len(v),) for v in vectors.values()), ("float32",) * len(vectors)
    )
    own = [
        NativeTensor(len(layout) + i, name, array) for i, (name, array) in enumerate(beside.items())
    ]
    flat = np.concatenate(list(vectors.values()))
    return EXACT.encode(flat, layout, names=True, own=own)


def unpack_copy(
    payload: Buffer, form: SnapshotForm, *, whole: bool
) -> tuple[dict[str, Vector], dict[str, Numbers]]:
    """Decode a snapshot that `pack_copy` encoded.

    The function checks the header before it decodes any value. Raises `PayloadError` for any
    payload that is not a snapshot of this form (`SnapshotForm.expect`). `whole`: True if the
    snapshot may also hold the optimiser's state.
    """
    # The sum: eight tensors for each of two optimisers, four vectors, and the tensors of `beside`.
    tensors = 2 * 8 + 4 + len(form.beside)
    layout, own = declared(payload, max_size=form.most, max_tensors=tensors)
    form.expect(layout, own, whole=whole)
    update = decode_update(payload, layout, own=own, exact=())
    vectors, vector = update.layout, update.dense()
    bounds = pairwise(vectors.offsets.tolist())
    found = {
        name: vector[start:stop] for name, (start, stop) in zip(vectors.names, bounds, strict=True)
    }
    if SAMPLES in found and found[SAMPLES][0] not in range(1, form.samples + 1):
        raise PayloadError(f"the copy is of {found[SAMPLES][0]:g} samples of a mini-batch")
    expect_counts(update.own)
    return found, {each.name: each.array for each in update.own}


class SegmentTask(NamedTuple):
    """Task for a segment of a partitioned model; the node's ClientApp reads it from `config`.

    A segment is a sequence of consecutive layers that one node trains.

    - `segment`: the number of the segment.
    - `cuts`: the layers at which the model is cut.
    - `life`: how many times the server has given this segment to a node.
    - `phase`: what to do: train, forward or backward. "" asks only for a snapshot.
    - `batch`, `batches`: the number of the first mini-batch, and the count of mini-batches.
    - `lr`: a learning rate for each mini-batch.
    - `micro`, `micros`: the number of the micro-batch, and the count of micro-batches.
    - `samples`: the number of samples in each micro-batch. The node of the first segment does not
      need it, because this node holds the data.
    - `copy`: which snapshot of the segment to send: "" for none, weights, or all.
    - `num_steps`: the cost of the task, in training steps of the whole model. The virtual clock
      reads it.
    """

    segment: int
    phase: str
    batch: int
    batches: int
    micro: int
    micros: int
    cuts: list[int]
    life: int
    samples: int
    lr: list[float]
    copy: str
    num_steps: float

    @property
    def number(self) -> int:
        """The number of this task's first micro-batch in the run, from 1.

        It is also the `number` in the message's header.
        """
        return self.batch * self.micros + self.micro + 1

    def config(self) -> dict[str, Any]:
        """Return these fields as a message's `config`."""
        return {key.replace("_", "-"): value for key, value in self._asdict().items()}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "SegmentTask":
        """Read a `config` that the server wrote with `SegmentTask.config`."""
        return cls(*(config[key.replace("_", "-")] for key in cls._fields))
