"""Checks that compression keeps the clipping norm of Flower's differential privacy wrappers.

The noise is calibrated to a norm C to which each node's update is clipped. If nodes clip, the
decoded update must still be within C: a residual adds values of earlier updates, and random
rounding adds noise. If the server clips, it clips decoded updates, and any method is fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from ..base import PayloadError
from ..batchnorm import exact_tensors, separate
from ..codec import Codec
from ..decoder import decode
from ..layout import Layout
from ..native_tensors import NativeTensor
from .records import Vector, records

KEY_CLIPPING_NORM = "clipping_norm"  # Flower's own; the module that has it differs by its version


ROUNDING = 1 + 1e-3  # tolerance for float32 sums of many squares


def clip_of(content: RecordDict) -> float | None:
    """Return the norm to which a message tells a node to clip; None if it tells none."""
    for _, config in records(content, ConfigRecord):
        if KEY_CLIPPING_NORM in config:
            return float(cast(float, config[KEY_CLIPPING_NORM]))
    return None


def keeps_clip(codec: Codec, layout: Layout) -> bool:
    """Return whether |decoded| <= |given| for any update, except for rounding."""
    return (
        codec.quantizer.keeps_norm
        and codec.sparsifier.contracts
        and not codec.memory_bytes(layout)
        and not codec.exact_names  # values, not changes: no norm covers them
    )


def is_clipped(codec: Codec, update: Vector, layout: Layout, clip: float) -> bool:
    """Return whether the trained entries are within the norm; otherwise no mod has clipped them.

    An app may use `clipping_norm` in its configuration for another purpose, such as its gradients.
    """
    beside = set(exact_tensors(layout, codec.exact_names))
    beside |= {t for t, shape in enumerate(layout.shapes) if not shape}  # Flower leaves them as are
    trained = separate(layout, tuple(sorted(beside))).gather(update)
    return float(np.linalg.norm(trained.astype(np.float64))) <= clip * ROUNDING


def expect_clip_kept(codec: Codec, own: Sequence[NativeTensor], layout: Layout) -> None:
    """Raise `PayloadError` for a codec or a model that does not work with clipping at the nodes.

    `own`: tensors beside the vector; `layout`: the vector's layout.
    """
    if not codec.exact and (own or exact_tensors(layout)):
        raise PayloadError(
            "BatchNorm's running statistics, integers and exact tensors travel as values, which no "
            "clipping covers: with differential privacy take a model without (GroupNorm, LayerNorm)"
        )
    if not codec.exact and not keeps_clip(codec, layout):
        names = f"{codec.sparsifier.name} with {codec.quantizer.name}"
        raise PayloadError(
            f"{names} does not keep the norm to which this node clips, so the noise of differential"
            " privacy would not cover it: take float32, float16, bfloat16 or int8 without a memory,"
            " or clip at the server"
        )


def within_clip(codec: Codec, delta: Vector, layout: Layout, clip: float, seed: int) -> Vector:
    """Return the delta, shortened a little if the decoded delta would be longer than `clip`."""
    norm = _decoded_norm(codec, delta, layout, seed)
    while norm > clip:  # mostly one pass; the shorter delta may be rounded differently
        delta = delta * np.float32(clip / norm * (1 - 1e-6))
        norm = _decoded_norm(codec, delta, layout, seed)
    return delta


def _decoded_norm(codec: Codec, delta: Vector, layout: Layout, seed: int) -> float:
    sent, _ = decode(codec.encode(delta, layout, seed=seed), layout)
    return float(np.linalg.norm(sent.astype(np.float64)))
