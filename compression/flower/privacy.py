"""Differential privacy with Flower's wrappers and mods: what it takes for its noise to suffice.

Noise is calibrated to a norm C to which each node's update is clipped. Where nodes clip, what is
sent must still be within C: a memory adds what earlier updates left, a random rounding adds noise
of its own. Where the server clips, it does so to what was decoded, and any method will do.
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


ROUNDING = 1 + 1e-3  # float32 sums of many squares


def clip_of(content: RecordDict) -> float | None:
    """Return the norm to which a message says a node is to clip, if it does."""
    for _, config in records(content, ConfigRecord):
        if KEY_CLIPPING_NORM in config:
            return float(cast(float, config[KEY_CLIPPING_NORM]))
    return None


def keeps_clip(codec: Codec, layout: Layout) -> bool:
    """Return whether what is decoded is no longer than what was given, but for rounding."""
    return (
        codec.quantizer.keeps_norm
        and codec.sparsifier.contracts
        and not codec.memory_bytes(layout)
        and not codec.exact_names  # values and no changes: they have no part in a norm
    )


def is_clipped(codec: Codec, update: Vector, layout: Layout, clip: float) -> bool:
    """Return whether what was trained is within the norm: else nobody has clipped it to that.

    An app of its own may have a `clipping_norm` in its configuration, for its gradients, say.
    """
    beside = set(exact_tensors(layout, codec.exact_names))
    beside |= {t for t, shape in enumerate(layout.shapes) if not shape}  # Flower leaves them as are
    trained = separate(layout, tuple(sorted(beside))).gather(update)
    return float(np.linalg.norm(trained.astype(np.float64))) <= clip * ROUNDING


def expect_clip_kept(codec: Codec, own: Sequence[NativeTensor], layout: Layout) -> None:
    """Raise `PayloadError` for a codec or a model that goes with no clipping at the nodes.

    `own`: what travels beside the vector; `layout`: of that.
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
    """Return the delta, a little shorter where its rounding would be longer than `clip`."""
    norm = _decoded_norm(codec, delta, layout, seed)
    while norm > clip:  # once, or a few times where what is shorter is rounded in another way
        delta = delta * np.float32(clip / norm * (1 - 1e-6))
        norm = _decoded_norm(codec, delta, layout, seed)
    return delta


def _decoded_norm(codec: Codec, delta: Vector, layout: Layout, seed: int) -> float:
    sent, _ = decode(codec.encode(delta, layout, seed=seed), layout)
    return float(np.linalg.norm(sent.astype(np.float64)))
