"""A node's signature in 130 bytes, in place of Flower's three HTTP headers of 450 bytes.

The server knows the key of each registered node, so a request carries the node's id in place of
its key. The signed text is the same as Flower's, the time in ISO format, and Flower checks it.

    i64 microseconds since 1970, u64 node id, u16 seconds to wait, u8 length of the signature in
    bytes, the signature
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_EPOCH, _TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_SEAL = struct.Struct("<qQHB")
LONGEST = _SEAL.size + 255  # bytes of the longest signed header


class SignedHeader(NamedTuple):
    """A request's node id, seconds to wait, time stamp and signature."""

    node_id: int
    wait: int
    stamp: str
    signature: bytes

    def headers(self, public_key: bytes) -> dict[str, str]:
        """Return the HTTP headers by which Flower authenticates its nodes."""
        return headers(public_key, self.stamp, self.signature)


def headers(public_key: bytes, stamp: str, signature: bytes) -> dict[str, str]:
    """Return the HTTP headers by which Flower authenticates its nodes."""
    return {
        "flwr-public-key": b64encode(public_key).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(signature).decode(),
    }


def sealed(node_id: int, wait: int, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the signed header of a request that is sent now, as bytes."""
    now = datetime.now(UTC)
    signature = sign(now.isoformat().encode())
    head = _SEAL.pack((now - _EPOCH) // _TICK, node_id, wait, len(signature))
    return head + signature


def opened(data: bytes) -> tuple[SignedHeader, bytes]:
    """Return the signed header and the bytes after it. Raises `ValueError` for a malformed one."""
    try:
        ticks, node_id, wait, size = _SEAL.unpack_from(data)
        stamp = (_EPOCH + ticks * _TICK).isoformat()
    except (struct.error, OverflowError) as error:
        raise ValueError(f"nobody has signed it: {error}") from error
    end = _SEAL.size + size
    return SignedHeader(node_id, wait, stamp, data[_SEAL.size : end]), data[end:]
