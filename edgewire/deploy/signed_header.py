"""The signature of a node's request in 130 bytes; Flower's three HTTP headers take 450 bytes.

The server knows the key of each registered node, so the request carries the node's id instead of
its key. As in Flower, the signed text is the time in ISO format. Flower's own code checks the
signature. The format:

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
_HEADER = struct.Struct("<qQHB")
LONGEST = _HEADER.size + 255  # bytes of the longest signed header
PROCESS = 4  # bytes of the random number of a node's process, which follows in a pull


class SignedHeader(NamedTuple):
    """The signed header of a request.

    `wait`: for how many seconds the server may hold the request; `stamp`: the time of signing, in
    ISO format.
    """

    node_id: int
    wait: int
    stamp: str
    signature: bytes


def headers(public_key: bytes, stamp: str, signature: bytes) -> dict[str, str]:
    """Return the HTTP headers by which Flower authenticates its nodes.

    `public_key`: in PEM; `stamp`: the signed time in ISO format.
    """
    return {
        "flwr-public-key": b64encode(public_key).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(signature).decode(),
    }


def sign_header(
    node_id: int, wait: int, sign: Callable[[bytes], bytes], ahead: float = 0.0
) -> bytes:
    """Return the signed header, as bytes, of a request that is sent now.

    `wait`: seconds; `sign`: returns the signature of a text; `ahead`: by how many seconds this
    machine's clock is ahead of the server's.
    """
    now = datetime.now(UTC) - timedelta(seconds=ahead)
    signature = sign(now.isoformat().encode())
    head = _HEADER.pack((now - _EPOCH) // _TICK, node_id, wait, len(signature))
    return head + signature


def read_header(data: bytes) -> tuple[SignedHeader, bytes]:
    """Return the signed header and the bytes after it. Raises `ValueError` for malformed data."""
    try:
        ticks, node_id, wait, size = _HEADER.unpack_from(data)
        stamp = (_EPOCH + ticks * _TICK).isoformat()
    except (struct.error, OverflowError) as error:
        raise ValueError(f"nobody has signed it: {error}") from error
    end = _HEADER.size + size
    return SignedHeader(node_id, wait, stamp, data[_HEADER.size : end]), data[end:]
