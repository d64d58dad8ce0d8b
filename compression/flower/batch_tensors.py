"""Payloads of a partitioned model's nodes: tensors of a batch, labels, a segment's snapshot."""

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
from ..native_tensors import NativeTensor
from .acks import OTHER_METHOD
from .headers import brief

EXACT = make_codec()
GRADIENTS = "gradients-"  # prefix of a payload's name; its first mini-batch's number follows
# Errors that begin with these are the sender's fault.
ACTIVATIONS, GRADIENTS_OF = "activations of mini-batch", "gradients of mini-batch"
LARGEST = 1e6  # larger values do not occur in any layer of a model that learns
NO_SEGMENT = "this node has no segment"  # prefix of an error after which the server sends one
# Names of a snapshot's tensors: the segment's weights and statistics; its module's weights
# ("segment KEY": the optimiser's state of them); and, between micro-batches, the gradient so far
# and its number of samples.
STATE, MODULE, GRADIENT, SAMPLES = "segment", "module", "gradient", "samples"
MOMENTS = 3  # the most tensors of the parameters' size that an optimizer of torch's stores
Numbers = NDArray[Any]


@lru_cache(maxsize=64)
def _layout(count: int, shape: tuple[int, ...]) -> Layout:
    return Layout(tuple(map(str, range(count))), (shape,) * count, ("float32",) * count)


def pack(
    tensors: Sequence[Numbers], codec: Codec, *, memory: Memory | None = None, seed: int = 0
) -> bytes:
    """Encode tensors of one shape, contiguous float32, in a payload; errors as `Codec.encode`."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    vector = flat[0] if len(flat) == 1 else np.concatenate(flat)
    layout = _layout(len(tensors), tuple(tensors[0].shape))
    return codec.encode(vector, layout, memory=memory, seed=seed)


def unpack(payload: Buffer, count: int, shape: tuple[int, ...], what: str) -> list[Numbers]:
    """Return `count` tensors of `shape`, float32, which may be read-only views of the payload.

    Raises `PayloadError`, beginning with `what`, for anything else, or values beyond `LARGEST`.
    """
    try:
        vector = decode_update(payload, _layout(count, shape)).dense()
    except PayloadError as error:
        raise PayloadError(f"{what}: {error}") from error
    if vector.size and not -LARGEST <= vector.min() <= vector.max() <= LARGEST:
        raise PayloadError(f"{what}: values beyond {LARGEST:g}")
    return list(vector.reshape(count, *shape))


def pack_labels(labels: Numbers, classes: int) -> bytes:
    """Encode labels, integers below `classes`, exactly: uint8 for up to 256 classes, else int64."""
    small = labels.astype(_type_of_labels(classes))
    return EXACT.encode(
        np.empty(0, np.float32), Layout((), (), ()), own=[NativeTensor(0, "labels", small)]
    )


def expect_tensors(
    payload: Buffer, count: int, shape: tuple[int, ...], what: str, codec: Codec
) -> None:
    """Raise `PayloadError` unless the header is that of `pack`ed tensors; no value is decoded."""
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
    """Return int64 labels of `shape`. Raises `PayloadError` for another shape or bad labels."""
    layout = Layout(("labels",), (shape,), (_type_of_labels(classes),))
    try:
        labels = decode_update(payload, layout, own=(0,), exact=()).own[0].array.astype(np.int64)
    except PayloadError as error:
        raise PayloadError(f"labels: {error}") from error
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise PayloadError(f"labels: they must be from 0 to {classes - 1}")
    return labels


class SnapshotForm(NamedTuple):
    """What a snapshot of a segment may hold.

    `size`: entries of the segment's weights and statistics, of which `trained` are parameters.
    `module`: parameters of its module. `beside`: shape and dtype of each tensor in its own type.
    `samples`: the most samples of a mini-batch.
    """

    size: int
    trained: int
    module: int
    beside: Mapping[str, tuple[tuple[int, ...], str]]
    samples: int

    @property
    def most(self) -> int:
        """The most entries of a snapshot."""
        beside = sum(math.prod(d for d in shape if d) for shape, _ in self.beside.values())
        vectors = self.size + self.module + self.trained + MOMENTS * (self.trained + self.module)
        return vectors + beside + 64

    def expect(self, layout: Layout, own: tuple[int, ...], *, whole: bool) -> None:
        """Raise `PayloadError` for tensors that do not make a segment.

        `layout`, `own`: as a payload declares them. `whole`: the snapshot may hold all state of
        training, otherwise only the weights.
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
    """Return the shape and dtype of each tensor: `SnapshotForm.beside`."""
    return {name: (array.shape, array.dtype.name) for name, array in tensors.items()}


def pack_copy(vectors: Mapping[str, Vector], beside: Mapping[str, Numbers]) -> bytes:
    """Encode a segment's snapshot exactly: float32 vectors by name, other tensors beside them."""
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
    """Undo `pack_copy`.

    Checks the header first, before it decodes anything. Raises `PayloadError` for anything but a
    snapshot of this form, see `SnapshotForm.expect`.
    """
    # At most eight tensors for each of two optimizers, four vectors, and the tensors beside them.
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
