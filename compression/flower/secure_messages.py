"""What the messages of a secure sum hold, and the terms that all nodes of a round agree on.

A message has a ConfigRecord `SECURE` for the sum. By message type, its values are:

- `query.secure_keys`: `run`, the nonce of the server's session, and `certify` if the server has no
  key of this node. The reply has `keys`: the node's run key and, in mode `sum`, its mask key of the
  round; and, of a node with a certificate, `certificate`, its proof (`..secure.certificates`), if
  the server asks for it or the run key is new.
- `query.secure_shares` (mode `sum`): `terms`, that is the round's number, the number of
  levels, and two hashes; `keys`, run keys that the node does not know yet, which it puts into its
  list at the place that stands before them; `certificates`, a list of the proofs of these keys,
  unless there are none; `roster`, a bitmap over the list; `masks`, the mask keys of the nodes in
  the roster. The reply has `sealed`, the shares for the other nodes.
- `train.step`: in mode `sum` `sealed`, the other nodes' shares for this node; in mode `bare`
  `keys`, `certificates` and `roster`. The reply's payload is the masked update.
- `query.secure_unmask` (mode `sum`): `alive`, a bitmap, and `round`. The reply has `shares`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from ..base import DIVERGED, TensorSlices
from ..codec import Codec
from ..decoder import parts_of
from ..layout import Layout
from ..quantizers.grid import OFFSET, SummableQuantizer
from ..secure import Peer, Roster, SecureError, Terms, threshold_of
from ..secure.terms import HASH, KEY, NO_KEY, from_bitmap
from .headers import DownlinkHeader, TrainConfig
from .native_tensors import Arrays
from .records import Vector, filled, values_of

SECURE = "secure"  # the name of the ConfigRecord
KEYS, SHARES, UNMASK = QUERIES = ("secure_keys", "secure_shares", "secure_unmask")
# A loss is summed in units of 2^-12, up to 2^15; losses beyond that count as 2^15.
LOSS_UNITS, MOST_LOSS = 1 << 12, 1 << 27
_HEAD = struct.Struct("<QQ")
HONEST = (
    "the secure sum hides single updates from an honest-but-curious server, not from one that "
    "invents nodes: docs/privacy.md says how nodes get certificates"
)
PLACE = 4  # bytes before run keys: the place of the first of them in the list, little-endian


class RoundHashes(NamedTuple):
    """What a server says of a round before it sends the model: `model_hash`, `orders_hash`.

    `entries`: the number of levels; 0 in a run's first round, in which nothing is in common yet.
    """

    number: int
    entries: int
    model: bytes
    orders: bytes

    def to_bytes(self) -> bytes:
        """Return 80 bytes."""
        return _HEAD.pack(self.number, self.entries) + self.model + self.orders

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundHashes:
        """Return what `to_bytes` encoded; raises `SecureError` for other bytes."""
        if len(data) != _HEAD.size + 2 * HASH:
            raise SecureError("these bytes are no terms of a round")
        number, entries = _HEAD.unpack_from(data)
        return cls(number, entries, data[_HEAD.size : -HASH], data[-HASH:])


class SumOf(NamedTuple):
    """What a run's secure sums are of, which both ends know from the configuration and the model.

    `quantizer`, `parts`: how levels are made, and of which tensors. `sums`: True in mode `sum`,
    False in mode `bare`.
    """

    quantizer: SummableQuantizer
    parts: TensorSlices
    sums: bool

    @classmethod
    def of(cls, codec: Codec, layout: Layout, mode: str) -> SumOf:
        """Return it for the nodes' codec, which `edgewire.conf.rules` has checked."""
        quantizer = codec.quantizer
        assert isinstance(quantizer, SummableQuantizer)
        return cls(quantizer, parts_of(None, layout), mode == "sum")

    def hashes(
        self, header: DownlinkHeader, orders: TrainConfig, model: Vector, natives: Arrays
    ) -> RoundHashes:
        """Return the hashes of a round; raises `PayloadError` for a wrong `header.common`."""
        common = header.common
        entries = 0 if common is None else self.quantizer.entries(common, self.parts)
        said = model_hash(model, natives), orders_hash(orders, header)
        return RoundHashes(header.number or 0, entries, *said)

    def terms(self, run: bytes, said: RoundHashes, nodes: int) -> Terms:
        """Return the terms of a round of `nodes` nodes in a session.

        The sections are the levels, the sizes, and a loss. Raises `SecureError` for numbers that
        are out of range.
        """
        rest = (self.quantizer.tensors(self.parts), OFFSET), (1, MOST_LOSS)
        levels = ((said.entries, self.quantizer.levels),) if said.entries else ()
        threshold = threshold_of(nodes) if self.sums else 0
        return Terms(run, said.number, threshold, (*levels, *rest), 0.0, said.model, said.orders)


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


def orders_hash(orders: TrainConfig, header: DownlinkHeader) -> bytes:
    """Return the SHA-256 of what a message for training says beside the model.

    So a server cannot give the other nodes a learning rate or scales with which their updates
    are 0.
    """
    said = header.number, header.density_factor, header.more_bits, header.common
    return sha256(json.dumps([orders, said]).encode()).digest()


def secure_record(**values: Any) -> ConfigRecord:
    """Return the record `SECURE` with these values."""
    return filled(ConfigRecord, values)


def secure_values(content: RecordDict, *names: str, **others: Any) -> list[Any]:
    """Return the values with these names, and those of `others`, or what stands there instead.

    Raises `SecureError` unless there are these alone, each of bytes or of the type in `others`.
    """
    record = values_of(content).get(SECURE)
    said = others | (values_of(record) if isinstance(record, ConfigRecord) else {})
    types = {**dict.fromkeys(names, bytes), **{name: type(each) for name, each in others.items()}}
    if {name: type(value) for name, value in said.items()} != types:
        raise SecureError(f"a message of the secure sum must hold {', '.join(names)}")
    return [said[name] for name in types]


def read_roster(keys: bytes, roster: bytes, masks: bytes = b"") -> Roster:
    """Return the roster of a round: the nodes' ids are their places in the list of run keys.

    `keys`: the list, `KEY` bytes each. `roster`: a bitmap over it. `masks`: the mask keys of these
    nodes. Raises `SecureError` for lengths that do not fit.
    """
    places = from_bitmap(roster, len(keys) // KEY)
    if len(keys) % KEY or (masks and len(masks) != KEY * len(places)):
        raise SecureError("the keys of a roster do not have the length that its nodes need")
    own = [masks[at * KEY : (at + 1) * KEY] or NO_KEY for at in range(len(places))]
    peers = [
        Peer(place, keys[place * KEY : (place + 1) * KEY], mask)
        for place, mask in zip(places, own, strict=True)
    ]
    return Roster(tuple(peers))
