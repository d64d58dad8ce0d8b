"""A message and its objects in one piece: named parts, one after the other.

A part is the length of its name (u32), the length of its content (u64), both little-endian, then
the name in UTF-8 and the content.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

HEAD = struct.Struct("<IQ")
LONGEST_NAME = 1024  # bytes


def frames(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the parts, (name, content) each, as one piece."""
    pieces: list[bytes] = []
    for name, content in parts:
        word = name.encode()
        pieces += [HEAD.pack(len(word), len(content)), word, content]
    return b"".join(pieces)


def parts_of(data: bytes, limit: int) -> list[tuple[str, bytes]]:
    """Return the parts of a piece.

    Raises `ValueError` for what is longer than `limit` bytes, or no such piece.
    """
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes, more than {limit}")
    found, place = list[tuple[str, bytes]](), 0
    while place < len(data):
        if place + HEAD.size > len(data):
            raise ValueError("it ends within the head of a part")
        name, content = HEAD.unpack_from(data, place)
        start = place + HEAD.size
        if name > LONGEST_NAME or name + content > len(data) - start:
            raise ValueError("a part is longer than what is there")
        found.append((data[start : start + name].decode(), data[start + name :][:content]))
        place = start + name + content
    return found
