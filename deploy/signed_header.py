"""Who asks, in 130 bytes: what Flower's nodes say in three headers of 450.

The server knows the key of each node that it counts, so a request names the node and not its key.
What is signed is the same, the time in ISO's form, and it is Flower that checks it.

    i64 microseconds since 1970, u64 the node, u16 seconds to wait, u8 bytes of the signature
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_EPOCH, _TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_SEAL = struct.Struct("<qQHB")
LONGEST = _SEAL.size + 255  # bytes of a seal


class SignedHeader(NamedTuple):
    """Who asks, since when, and for how many seconds the reply may take."""

    node_id: int
    wait: int
    stamp: str
    signature: bytes

    def headers(self, public_key: bytes) -> dict[str, str]:
        """Return the headers by which Flower knows its nodes."""
        return headers(public_key, self.stamp, self.signature)


def headers(public_key: bytes, stamp: str, signature: bytes) -> dict[str, str]:
    """Return the headers by which Flower knows its nodes."""
    return {
        "flwr-public-key": b64encode(public_key).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(signature).decode(),
    }


def sealed(node_id: int, wait: int, sign: Callable[[bytes], bytes]) -> bytes:
    """Return what a request begins with: who asks, now."""
    now = datetime.now(UTC)
    signature = sign(now.isoformat().encode())
    head = _SEAL.pack((now - _EPOCH) // _TICK, node_id, wait, len(signature))
    return head + signature


def opened(data: bytes) -> tuple[SignedHeader, bytes]:
    """Return who asks, and what comes after that. Raises `ValueError` for what is none."""
    try:
        ticks, node_id, wait, size = _SEAL.unpack_from(data)
        stamp = (_EPOCH + ticks * _TICK).isoformat()
    except (struct.error, OverflowError) as error:
        raise ValueError(f"nobody has signed it: {error}") from error
    end = _SEAL.size + size
    return SignedHeader(node_id, wait, stamp, data[_SEAL.size : end]), data[end:]
