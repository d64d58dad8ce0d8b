"""Tensors of a batch, labels, and a segment's state as payloads: what a cut model's nodes send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codec import Codec
from ..layout import Layout
from ..make import make_codec
from ..own import Own
from ..payload import MAX_SIZE, decode_update
from ..stages import Buffer, Memory, PayloadError, Vector

EXACT = make_codec()
GRADIENTS = "gradients-"  # begins a payload's name; its first mini-batch's number follows
# These begin errors that are the sender's.
ACTIVATIONS, GRADIENTS_OF = "activations of mini-batch", "gradients of mini-batch"
LARGEST = 1e6  # no layer of a model that learns has values beyond
NO_SEGMENT = "this node has no segment"  # begins an error that the server answers with a copy
# Tensors of a copy: the segment's weights and statistics, its module's weights ("segment KEY": what
# an optimiser keeps of them), and between micro-batches the gradient so far, of so many samples.
STATE, MODULE, GRADIENT, SAMPLES = "segment", "module", "gradient", "samples"
Numbers = NDArray[Any]


@lru_cache(maxsize=64)
def _layout(count: int, shape: tuple[int, ...]) -> Layout:
    return Layout(tuple(map(str, range(count))), (shape,) * count, ("float32",) * count)


def pack(
    tensors: Sequence[Numbers], codec: Codec, *, memory: Memory | None = None, seed: int = 0
) -> bytes:
    """Return tensors of one shape, contiguous float32, as a payload; errors as `Codec.encode`."""
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
    """Return labels, integers below `classes`, in one byte each where that is enough."""
    small = labels.astype(np.uint8 if classes <= 256 else np.int64)
    return EXACT.encode(np.empty(0, np.float32), Layout((), (), ()), own=[Own(0, "labels", small)])


def unpack_labels(payload: Buffer, shape: tuple[int, ...], classes: int) -> NDArray[np.int64]:
    """Return labels of `shape`. Raises `PayloadError` for others, or no classes."""
    own = decode_update(payload, max_size=int(np.prod(shape))).own
    if len(own) != 1 or own[0].array.dtype.kind not in "iu":
        raise PayloadError("labels: the payload holds no labels")
    labels = own[0].array.astype(np.int64)
    if labels.shape != shape:
        raise PayloadError(f"labels: of shape {labels.shape}, {shape} is expected")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise PayloadError(f"labels: they must be from 0 to {classes - 1}")
    return labels


def pack_copy(vectors: Mapping[str, Vector], beside: Mapping[str, Numbers]) -> bytes:
    """Return a segment's state exactly: float32 vectors by name, other tensors beside them."""
    layout = Layout(
        tuple(vectors), tuple((len(v),) for v in vectors.values()), ("float32",) * len(vectors)
    )
    own = [Own(len(layout) + i, name, array) for i, (name, array) in enumerate(beside.items())]
    flat = np.concatenate(list(vectors.values()))
    return EXACT.encode(flat, layout, names=True, own=own)


def unpack_copy(
    payload: Buffer, size: int, most: int = MAX_SIZE
) -> tuple[dict[str, Vector], dict[str, Numbers]]:
    """Undo `pack_copy`, for a segment of `size` entries, `most` in all. Raises `PayloadError`."""
    update = decode_update(payload, max_size=most)
    layout, vector = update.layout, update.dense()
    bounds = layout.offsets.tolist()
    found = {
        name: vector[start:stop]
        for name, start, stop in zip(layout.names, bounds, bounds[1:], strict=False)
    }
    if len(found) != len(layout) or STATE not in found or len(found[STATE]) != size:
        raise PayloadError(f"a copy of the segment must hold its {size} values")
    return found, {each.name: each.array for each in update.own}
