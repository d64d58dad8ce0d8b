"""Checks that a decoded update stays within the clipping norm of differential privacy.

Flower's differential privacy wrappers clip each node's update to a norm C and add noise that is
calibrated to C. If the nodes clip, the norm of the decoded update must not exceed C. A residual can
exceed C, because it adds values of earlier updates; random rounding can exceed C, because it adds
noise. If the server clips, it clips decoded updates, so every method is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from ..base import PayloadError
from ..batchnorm import exact_tensors, separate
from ..codec import Codec
from ..decoder import decode
from ..layout import Layout
from ..wire_natives import NativeTensor
from .records import Vector, values_of

KEY_CLIPPING_NORM = "clipping_norm"  # Flower's constant; its module depends on Flower's version
ROUNDING = 1 + 1e-3  # tolerance for rounding in float32 sums of many squares


def clip_of(content: RecordDict) -> float | None:
    """Return the clipping norm in a message's ConfigRecords; None if they hold none."""
    for record in values_of(content).values():
        if ConfigRecord in type(record).__mro__ and KEY_CLIPPING_NORM in values_of(record):
            return float(values_of(record)[KEY_CLIPPING_NORM])
    return None


def is_clipped(codec: Codec, update: Vector, layout: Layout, clip: float) -> bool:
    """Return whether an update is clipped: its trained entries have at most the L2 norm `clip`.

    If the norm is larger, no mod has clipped the update. Then the app uses `clipping_norm` in its
    configuration for another purpose, such as gradient clipping.
    """
    beside = set(exact_tensors(layout, codec.exact_names))
    beside |= {t for t, shape in enumerate(layout.shapes) if not shape}  # Flower skips scalars
    trained = separate(layout, tuple(sorted(beside))).gather(update)
    return float(np.linalg.norm(trained.astype(np.float64))) <= clip * ROUNDING


def expect_clip_kept(codec: Codec, own: Sequence[NativeTensor], layout: Layout) -> None:
    """Raise `PayloadError` if this codec or this model does not keep clipped updates clipped.

    A codec may increase an update's norm, and some tensors are sent as values, which are not
    clipped. `own`: the tensors that are sent in their own dtype, beside the float32 vector.
    `layout`: the vector's layout.
    """
    if codec.exact:
        return
    if own or exact_tensors(layout):
        raise PayloadError(
            "BatchNorm's running statistics, integers and exact tensors travel as values, which no "
            "clipping covers: with differential privacy take a model without (GroupNorm, LayerNorm)"
        )
    if (
        not codec.quantizer.keeps_norm
        or not codec.sparsifier.contracts
        or codec.memory_bytes(layout)
        or codec.exact_names  # these tensors are sent as values, which are not clipped
    ):
        names = f"{codec.sparsifier.name} with {codec.quantizer.name}"
        raise PayloadError(
            f"{names} does not keep the norm to which this node clips, so the noise of differential"
            " privacy would not cover it: take float32, float16, bfloat16 or int8 without a memory,"
            " or clip at the server"
        )


def within_clip(codec: Codec, delta: Vector, layout: Layout, clip: float, seed: int) -> Vector:
    """Scale an update down slightly if its norm after decoding would exceed `clip`."""
    # Usually one pass; the scaled delta may be rounded differently.
    while (norm := _decoded_norm(codec, delta, layout, seed)) > clip:
        delta = delta * np.float32(clip / norm * (1 - 1e-6))
    return delta


def _decoded_norm(codec: Codec, delta: Vector, layout: Layout, seed: int) -> float:
    sent, _ = decode(codec.encode(delta, layout, seed=seed), layout)
    return float(np.linalg.norm(sent.astype(np.float64)))
