"""How a node answers: its update encoded with its memory, numbered where it matters who got it."""

from __future__ import annotations

from collections.abc import Sequence

from ..codec import Codec
from ..layout import Layout
from ..own import Own
from .arrays import Vector
from .state import NodeState


def codec_seed(seed: int, node: int, server_round: int) -> int:
    """Mix run seed, node (its partition) and round into one integer for codecs that draw."""
    return (seed << 96) | (node << 32) | server_round


def encode_answer(
    codec: Codec,
    update: Vector,
    layout: Layout,
    state: NodeState,
    *,
    applied: int,
    sequence: int,
    seed: int,
    loss: float | None = None,
    workers: int = 0,
    own: Sequence[Own] = (),
) -> bytes:
    """Return the payload of the answer number `sequence`; `state` is changed and saved.

    `applied`: number of this node's last answer that is in the server's model (0: none). If that
    is not the last one sent, that one is put back into the memory first, so that nothing is lost,
    and a payload never builds on one that the server does not have. Errors as `Codec.encode`.
    """
    arrived = applied == state.sequence
    if not arrived and state.last is not None:
        codec.put_back(state.last, layout, state.memory)
        state.last = None
        state.save()  # now: what follows may raise
    payload = codec.encode(
        update,
        layout,
        memory=state.memory,
        seed=seed,
        loss=loss,
        workers=workers,
        as_before=arrived and state.sequence > 0,
        own=own,
    )
    state.sequence = sequence
    state.last = payload if codec.keeps else None
    state.save()
    return payload
