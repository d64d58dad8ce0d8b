"""What the messages of a secure sum hold, and the hashes by which a node knows what it is part of.

A message has a ConfigRecord `SECURE` for the sum. By message type, its values are:

- `query.secure_keys`: `run`, the nonce of the server's session. The reply has `keys`: the node's
  run key and, in mode `sum`, its mask key of the round.
- `query.secure_shares` (mode `sum`): `terms`; `keys`, the run keys that the node does not know yet,
  which it adds to its list; `roster`, a bitmap over this list; `masks`, the mask keys of the nodes
  in the roster. The reply has `sealed`, the shares for the other nodes.
- `train.step`: in mode `sum` `sealed`, a bitmap of the nodes that have shared and their shares for
  this node; in mode `bare` `terms`, `keys` and `roster`. The reply's payload is the masked update.
- `query.secure_unmask` (mode `sum`): `alive`, a bitmap. The reply has `shares`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from ..base import DIVERGED
from ..quantizers.grid import OFFSET
from ..secure import Peer, Roster, SecureError
from ..secure.terms import KEY, from_bitmap
from .headers import DownlinkHeader, TrainConfig
from .records import Vector, filled, values_of

SECURE = "secure"  # the name of the ConfigRecord
KEYS, SHARES, UNMASK = QUERIES = ("secure_keys", "secure_shares", "secure_unmask")
# A loss is summed in units of 2^-12, up to 2^15; losses beyond that count as 2^15.
LOSS_UNITS, MOST_LOSS = 1 << 12, 1 << 27


def sections_of(
    entries: int, levels: int, tensors: int, *, scaled: bool
) -> tuple[tuple[int, int], ...]:
    """Return (count, most) of each section of a node's vector: levels, sizes, loss.

    `entries`: the number of levels, which are from -`levels` to `levels`. `tensors`: the number of
    sizes (`quantizers/grid.py`). `scaled`: False in a run's first round, which has no common scale
    and so no levels.
    """
    rest = (tensors, OFFSET), (1, MOST_LOSS)
    return ((entries, levels), *rest) if scaled else rest


def loss_units(loss: float | None) -> NDArray[np.int64]:
    """Return a loss as an integer (1,) to be summed; raises `SecureError` if it is not finite."""
    if loss is None or not np.isfinite(loss):
        raise SecureError(f"the loss is no finite number: {DIVERGED}")
    return np.array([np.clip(round(loss * LOSS_UNITS), -MOST_LOSS, MOST_LOSS)], dtype=np.int64)


def model_hash(vector: Vector, natives: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the SHA-256 of a model as its nodes get it: a flat vector, and native tensors."""
    found = sha256(np.ascontiguousarray(vector, "<f4").data)
    for name, array in sorted(natives.items()):
        found.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def orders_hash(orders: TrainConfig, header: DownlinkHeader, config: str) -> bytes:
    """Return the SHA-256 of all that a node's update depends on beside the model and its data.

    So a server cannot give the other nodes a learning rate or scales with which their updates
    are 0. `config`: the run's configuration, as the node got it.
    """
    said = header.number, header.workers, header.density_factor, header.more_bits, header.common
    return sha256(json.dumps([orders, said, config]).encode()).digest()


def secure_record(**values: bytes) -> ConfigRecord:
    """Return the record `SECURE` with these values."""
    return filled(ConfigRecord, values)


def secure_values(content: RecordDict, *names: str) -> list[bytes]:
    """Return the values with these names; raises `SecureError` unless there are these alone."""
    record = values_of(content).get(SECURE)
    said = values_of(record) if isinstance(record, ConfigRecord) else {}
    if {*said} != {*names} or not all(type(value) is bytes for value in said.values()):
        raise SecureError(f"a message of the secure sum must hold {', '.join(names)}")
    return [said[name] for name in names]


def roster_of(keys: bytes, roster: bytes, masks: bytes = b"") -> Roster:
    """Return the roster of a round: the nodes' ids are their places in the list of run keys.

    `keys`: the list, `KEY` bytes each. `roster`: a bitmap over it. `masks`: the mask keys of these
    nodes. Raises `SecureError` for lengths that do not fit.
    """
    places = from_bitmap(roster, len(keys) // KEY)
    if len(keys) % KEY or (masks and len(masks) != KEY * len(places)):
        raise SecureError("the keys of a roster do not have the length that its nodes need")
    peers = [
        Peer(place, keys[place * KEY : (place + 1) * KEY], masks[at * KEY : (at + 1) * KEY])
        for at, place in enumerate(places)
    ]
    return Roster(tuple(peers))
