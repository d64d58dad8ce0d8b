"""A bundle joins several named byte strings, so one request carries a message and its objects.

A bundle is a sequence of little-endian records. A record is: u32 length of the name in bytes, u64
length of the content in bytes, the name (UTF-8), the content.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MOST_PARTS, LONGEST_NAME = 1 << 16, 256  # the most parts of one message; most bytes of a name
OF_MANY = 1 << 22  # the most parts of a bundle with all nodes' messages
_HEAD = struct.Struct("<IQ")


def frames(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a bundle with the given parts, (name, content), in the given order."""
    pieces: list[bytes] = []
    for name, content in parts:
        encoded = name.encode()
        pieces += [_HEAD.pack(len(encoded), len(content)), encoded, content]
    return b"".join(pieces)


def parts_of(data: bytes, limit: int, most: int = MOST_PARTS) -> list[tuple[str, bytes]]:
    """Return the parts, (name, content), of a bundle that `frames` made.

    Raises `ValueError` for a bundle of more than `limit` bytes or `most` parts, and for a malformed
    bundle.
    """
    if len(data) > limit:
        raise ValueError(f"a bundle of {len(data)} bytes, and no more than {limit} are taken")
    parts, at = list[tuple[str, bytes]](), 0
    while at < len(data):
        if at + _HEAD.size > len(data):
            raise ValueError("the bundle ends within a record's head")
        name, content = _HEAD.unpack_from(data, at)
        if len(parts) == most or name > LONGEST_NAME:
            raise ValueError(f"the bundle has over {most} parts, or a name of {name} bytes")
        start = at + _HEAD.size + name
        at = start + content
        if at > len(data):
            raise ValueError("the bundle ends within a record")
        parts.append((data[start - name : start].decode(), data[start:at]))  # decode: ValueError
    return parts
