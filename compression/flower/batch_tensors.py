"""Encodes and decodes what nodes send that train parts of a model: tensors, labels, snapshots.

Each node trains one segment of the model, a sequence of consecutive layers. The tensors are
activations and gradients. A snapshot holds a segment's weights and, on request, its optimiser's
state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Buffer, Memory, PayloadError, Vector
from ..batchnorm import expect_counts
from ..codec import Codec
from ..decoder import declared, decode_update, expect
from ..layout import Layout
from ..make import make_codec
from ..wire_natives import NativeTensor
from .acks import OTHER_METHOD
from .headers import brief

EXACT = make_codec()
GRADIENTS = "gradients-"  # prefix of a payload's name, before the number of its first mini-batch
# If an error's text begins with one of these, the node that sent the tensors is at fault.
ACTIVATIONS, GRADIENTS_OF = "activations of mini-batch", "gradients of mini-batch"
LARGEST = 1e6  # the largest value allowed; activations of a model that learns stay below it
NO_SEGMENT = "this node has no segment"  # begins an error; the server then sends a segment
# Names of a snapshot's tensors. "segment": the segment's weights and statistics. "module": the
# weights of its module for synthetic gradients. "segment KEY", "module KEY": the tensor KEY of the
# optimiser's state. "gradient", "samples": between two micro-batches, the gradient so far and its
# number of samples.
STATE, MODULE, GRADIENT, SAMPLES = "segment", "module", "gradient", "samples"
MOMENTS = 3  # the most tensors per parameter in the state of one of PyTorch's optimisers
Numbers = NDArray[Any]


@lru_cache(maxsize=64)
def _layout(count: int, shape: tuple[int, ...]) -> Layout:
    return Layout(tuple(map(str, range(count))), (shape,) * count, ("float32",) * count)


def pack(
    tensors: Sequence[Numbers], codec: Codec, *, memory: Memory | None = None, seed: int = 0
) -> bytes:
    """Encode contiguous float32 tensors of the same shape; raises the errors of `Codec.encode`."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    vector = flat[0] if len(flat) == 1 else np.concatenate(flat)
    layout = _layout(len(tensors), tuple(tensors[0].shape))
    return codec.encode(vector, layout, memory=memory, seed=seed)


def unpack(payload: Buffer, count: int, shape: tuple[int, ...], what: str) -> list[Numbers]:
    """Decode `count` float32 tensors of `shape`; they may be read-only views of the payload.

    Raises `PayloadError` for a payload of other tensors, and for absolute values above `LARGEST`.
    The error's text begins with `what`.
    """
    try:
        vector = decode_update(payload, _layout(count, shape)).dense()
    except PayloadError as error:
        raise PayloadError(f"{what}: {error}") from error
    if vector.size and not -LARGEST <= vector.min() <= vector.max() <= LARGEST:
        raise PayloadError(f"{what}: values beyond {LARGEST:g}")
    return list(vector.reshape(count, *shape))


def pack_labels(labels: Numbers, classes: int) -> bytes:
    """Encode labels from 0 to `classes` - 1 without loss: uint8 up to 256 classes, else int64."""
    small = labels.astype(_type_of_labels(classes))
    return EXACT.encode(
        np.empty(0, np.float32), Layout((), (), ()), own=[NativeTensor(0, "labels", small)]
    )


def expect_tensors(
    payload: Buffer, count: int, shape: tuple[int, ...], what: str, codec: Codec
) -> None:
    """Raise `PayloadError` unless the payload's header describes the tensors that `pack` encodes.

    `count`, `shape`: the number of tensors, and the shape of each. `what`: the start of the error's
    text. No value is decoded.
    """
    if not codec.made(payload):
        raise PayloadError(f"{what}: {OTHER_METHOD}")
    layout = _layout(count, shape)
    try:
        expect(payload, layout, exact=codec.exact_tensors(layout))
    except PayloadError as error:
        raise PayloadError(f"{what}: {error}") from error


def _type_of_labels(classes: int) -> str:
    return "uint8" if classes <= 256 else "int64"


def unpack_labels(payload: Buffer, shape: tuple[int, ...], classes: int) -> NDArray[np.int64]:
    """Decode labels to int64 of `shape`.

    Raises `PayloadError` for another shape, and for labels outside 0 to `classes` - 1.
    """
    layout = Layout(("labels",), (shape,), (_type_of_labels(classes),))
    try:
        labels = decode_update(payload, layout, own=(0,), exact=()).own[0].array.astype(np.int64)
    except PayloadError as error:
        raise PayloadError(f"labels: {error}") from error
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise PayloadError(f"labels: they must be from 0 to {classes - 1}")
    return labels


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
