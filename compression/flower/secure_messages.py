"""What the messages of a secure sum hold, and the terms that all nodes of a round agree on.

A message has a ConfigRecord `SECURE` for the sum. By message type, its values are:

- `query.secure_keys`: `run`, the nonce of the server's session, and `certify` if the server has no
  key of this node. The reply has `keys`: the node's run key and, in mode `sum`, its mask key of the
  round; and, of a node with a certificate, `certificate`, its proof
  (`..secure.certificates`), if the server asks for it or the run key is new.
- `query.secure_shares` (mode `sum`): `terms` (`SumOf.said`); `keys`, run keys that the node does
  not know yet, which it puts into its list at the place that stands before them; `certificates`, a
  list of the proofs of these keys, unless there are none; `roster`, a bitmap over the list;
  `masks`, the mask key of each node of the roster. The reply has `sealed`, the shares for the
  other nodes.
- `train.step`: in mode `sum` `sealed`, the other nodes' shares for this node; in mode `bare`
  `keys`, `certificates` and `roster`. The reply's payload is the masked update.
- `query.secure_unmask` (mode `sum`): `alive`, a bitmap, and `round`. The reply has `shares`.
"""

from __future__ import annotations

import json
import struct
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
from ..secure import Peer, Roster, SecureError, Terms
from ..secure.terms import KEY, expect_bytes, from_bitmap
from .headers import DownlinkHeader, TrainConfig
from .native_tensors import Arrays
from .records import Vector, filled, values_of

SECURE = "secure"  # the name of the ConfigRecord
KEYS, SHARES, UNMASK = QUERIES = ("secure_keys", "secure_shares", "secure_unmask")
# A loss is summed in units of 2^-12, up to 2^15; losses beyond that count as 2^15.
LOSS_UNITS, MOST_LOSS = 1 << 12, 1 << 27
# What a server says of a round before it sends the model: the round's number, how many levels each
# node sends, and `given_hash`.
_SAID = struct.Struct("<QQ32s")
HONEST = (
    "the secure sum hides single updates from an honest-but-curious server, not from one that "
    "invents nodes: docs/privacy.md says how nodes get certificates"
)
PLACE = 4  # bytes before run keys: the place of the first of them in the list, little-endian


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

    def said(
        self, header: DownlinkHeader, orders: TrainConfig, model: Vector, natives: Arrays
    ) -> bytes:
        """Return what the terms say of a round, 48 bytes.

        Raises `PayloadError` for a wrong `header.common`.
        """
        entries = self.quantizer.entries(header.common or (), self.parts)
        return _SAID.pack(header.number or 0, entries, given_hash(header, orders, model, natives))

    def terms(self, run: bytes, said: bytes) -> Terms:
        """Return the terms of a round in a session, for what `said` returned.

        The sections are the levels, the sizes, and a loss. Raises `SecureError` for other bytes,
        and for numbers that are out of range.
        """
        expect_bytes("the terms of a round", said, _SAID.size)
        number, entries, given = _SAID.unpack(said)
        levels, sizes = (
            (entries, self.quantizer.levels),
            (self.quantizer.tensors(self.parts), OFFSET),
        )
        return Terms(run, number, (levels, sizes, (1, MOST_LOSS)), given)


def loss_units(loss: float | None) -> NDArray[np.int64]:
    """Return a loss as an integer (1,) to be summed; raises `SecureError` if it is not finite."""
    if loss is None or not np.isfinite(loss):
        raise SecureError(f"the loss is no finite number: {DIVERGED}")
    return np.array([np.clip(round(loss * LOSS_UNITS), -MOST_LOSS, MOST_LOSS)], dtype=np.int64)


def given_hash(
    header: DownlinkHeader, orders: TrainConfig, model: Vector, natives: Arrays
) -> bytes:
    """Return the SHA-256 of all that a message for training says: the model and the settings.

    So a server cannot give the other nodes a model, a learning rate or scales with which their
    updates are 0.
    """
    tensors = [(name, array.dtype.str, array.shape) for name, array in sorted(natives.items())]
    said = [header.number, header.density_factor, header.more_bits, header.common, orders, tensors]
    found = sha256(json.dumps(said).encode() + b"\0")
    found.update(np.ascontiguousarray(model, "<f4").data)
    for name, *_ in tensors:
        found.update(np.ascontiguousarray(natives[name]).tobytes())
    return found.digest()


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

    `keys`: the list, `KEY` bytes each. `roster`: a bitmap over it. `masks`: the nodes' mask keys,
    in mode `sum`. Raises `SecureError` for lengths that do not fit.
    """
    places = from_bitmap(roster, len(keys) // KEY)
    if len(keys) % KEY or (masks and len(masks) != KEY * len(places)):
        raise SecureError("the keys of a roster do not have the length that its nodes need")
    peers = [Peer(place, keys[place * KEY : (place + 1) * KEY]) for place in places]
    if masks:
        own = (masks[at : at + KEY] for at in range(0, len(masks), KEY))
        peers = [peer._replace(mask_key=key) for peer, key in zip(peers, own, strict=True)]
    return Roster(tuple(peers))
