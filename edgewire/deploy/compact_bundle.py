"""Compact bundles: a message with its objects, without the hashes that the receiver can compute.

A message of Flower consists of seven small objects and the payload. The name of an object is the
SHA-256 of its content, in 64 hexadecimal digits. Other objects repeat the name two or three times.
A bundle is a list of parts, each with a name and a content. The compact format

- omits a name that is the SHA-256 of a small content;
- replaces a name within a small content by the number of the part with that name;
- writes any other SHA-256 in 32 bytes;
- deflates the rest of all small contents together;
- copies large contents, which are payloads and already compressed.

    bundle    u8 number of the format, u32 size of `deflated` in bytes, `deflated`, `raw`
    raw       large contents, and names of 32 bytes, in the order in which `numbers` refers to them

    deflated  u32 size of `numbers` in bytes, `numbers`, `text`
    text      names that are not a SHA-256, and the text before, between and after the names in
              small contents
    numbers   (LEB128) the number of parts; then for each part its name and its content
              - a name or a small content: the number of its pieces, which are a text, a SHA-256, a
                text and so on; for each text its length in `text`; for each SHA-256 0 for the next
                32 bytes of `raw`, or the number of the part with that name, from 1
              - a name that is the hash of the small content: 0
              - a large content: 0, and its length in `raw`

The first part contains the names of the others, so it is the last one in the compact format.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from io import BytesIO

from edgewire.protocol.bundle import LONGEST_NAME, MOST_PARTS

FORM = 3  # raise it with every change of the format or of the dictionary
SMALL = 1 << 14  # bytes: the largest small content
MOST = 1 << 24  # bytes: the largest size of `deflated` after inflating
_LETTERS = 64  # hexadecimal digits of a SHA-256
_NAME = re.compile(rb"([0-9a-f]{64})")
_HEAD, _SIZE = struct.Struct("<BI"), struct.Struct("<I")
_WORDS = (  # the dictionary of zlib: likely strings, the most likely last
    b"evaluate query \x12\x02129 client-app accuracy top5 error proximal-mu server-round segment "
    b"weights gradients label drift exact checksum whole named "
    b"ConfigRecord  31\x00\n\x0f\n\x02lr\x12\t\t\n\x0c\n\x06number\x12\x02\x10"
    b"\n\x0c\n\x07applied\x12\x02\x10\n\r\n\x07workers\x12\x02\x10\n\x0c\n\x07version\x12\x02\x10"
    b"\n\n\n\x04base\x12\x02\x10\n\x16\n\x05rates\x12\r\xaa\x01\n\n\x08\n\x0e\n\x08sequence\x12\x02"
    b"MetricRecord  79\x00\n\x11\n\x04loss\x12\t\t\x00\x00\x00\n\x13\n\x0cnum-examples\x12\x03\x10"
    b"\n\x0f\n\tnum-steps\x12\x02\x10\n\x14\n\x07seconds\x12\t\t\x00\x00\x00"
    b'ArrayRecord  79\x00{"11": "payload": ""}RecordDict ,, 237\x00'
    b'{"arrays": "", "config": "", "metrics": "", "edgewire": ""}'
    b'{"arrays": ""}"stype": "edgewire.records+payload", '
    b'Array  88\x00{"dtype": "uint8", "shape": [1], "stype": "edgewire.payload", '
    b'"arraychunk_ids": [0]}ArrayChunk  10'
    b"@\n@\x12\x98\x03\n@\x12\xcb\x01\n@\x12\x84\x01\n@\x12B\n@\x12B\n@"
    b"Message  48\x00\n.\x08\x01\x18 \x042\x02129\x00\x00\x00\x00\x00\x18\xe5@B\ntrain.stepI"
)


def compact(parts: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the compact bundle of parts, each (name, content). `parts_of` decodes it."""
    return b"".join(pieces(parts))


def pieces(parts: Sequence[tuple[str, bytes]]) -> list[bytes]:
    """Return the compact bundle of parts in pieces; large contents are pieces without a copy."""
    made = _Writer()
    made.numbers.append(len(parts))
    for name, content in [*parts[1:], *parts[:1]]:
        made.put(name.encode(), content)
    return made.bundle()


def parts_of(data: bytes, limit: int, most: int = MOST_PARTS) -> list[tuple[str, bytes]]:
    """Return the parts of a bundle that `compact` made, each (name, content).

    Raises `ValueError` for a bundle of more than `limit` bytes or `most` parts, and for a malformed
    bundle. Its deflated data may be at most 16 MB (`MOST`) after inflating.
    """
    if len(data) > limit:
        raise ValueError(f"a bundle of {len(data)} bytes, and no more than {limit} are taken")
    try:
        read = _Reader(data, limit)
        if (count := read.number()) > most:
            raise ValueError(f"a bundle of {count} parts, and no more than {most} are taken")
        parts = [read.part() for _ in range(count)]
        read.expect_end()
    except (IndexError, zlib.error) as error:
        raise ValueError(f"the bundle is damaged: {error}") from error
    return [*parts[-1:], *parts[:-1]]


class _Writer:
    """Encodes a bundle, part by part."""

    def __init__(self) -> None:
        self.numbers = list[int]()
        self._text, self._raw = list[bytes](), list[bytes]()
        self._places: dict[bytes, int] = {}  # name -> number of its part, from 1
        self._count = 0
        self._room = MOST // 2  # bytes left for `text`; `numbers` takes less than the other half

    def put(self, name: bytes, content: bytes) -> None:
        """Add a part to the bundle."""
        small = len(content) <= min(SMALL, self._room)
        self._room -= (len(content) if small else 0) + len(name) + 8
        if small and name == _hash(content):
            self.numbers.append(0)
        else:
            self._say(name)
        if small:
            self._say(content)
        else:
            self.numbers += [0, len(content)]
            self._raw.append(content)
        self._count += 1
        self._places[name] = self._count

    def _say(self, content: bytes) -> None:
        """Add a name or a small content."""
        found = _NAME.split(content)
        self.numbers.append(len(found))
        for index, piece in enumerate(found):
            if index % 2 == 0:
                self.numbers.append(len(piece))
                self._text.append(piece)
            else:
                self.numbers.append(place := self._places.get(piece, 0))
                if not place:
                    self._raw.append(bytes.fromhex(piece.decode()))

    def bundle(self) -> list[bytes]:
        """Return the bundle of all added parts in pieces."""
        numbers = _varints(self.numbers)
        squeeze = zlib.compressobj(9, wbits=-15, zdict=_WORDS)
        told = b"".join([_SIZE.pack(len(numbers)), numbers, *self._text])
        deflated = squeeze.compress(told) + squeeze.flush()
        return [_HEAD.pack(FORM, len(deflated)) + deflated, *self._raw]


class _Reader:
    """Decodes a bundle, part by part.

    Its methods raise `ValueError`, `IndexError` or `zlib.error` for a malformed bundle.
    """

    def __init__(self, data: bytes, limit: int) -> None:
        self._raw = BytesIO(data)
        form, size = _HEAD.unpack(_take(self._raw, _HEAD.size))
        if form != FORM:
            raise ValueError(f"a bundle of form {form}, and {FORM} is known")
        if size > MOST:
            raise ValueError(f"the bundle has over {MOST} bytes deflated")
        self._text = BytesIO(_inflated(_take(self._raw, size)))
        (size,) = _SIZE.unpack(_take(self._text, _SIZE.size))
        self._numbers = BytesIO(_take(self._text, size))
        self._names = list[bytes]()
        self._room = min(limit, MOST)  # bytes of small contents and names that may still follow

    def number(self) -> int:
        """Return the next number of `numbers` (see the module's format)."""
        found = shift = 0
        while shift < 63:
            byte = _take(self._numbers, 1)[0]
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
        raise ValueError("a number in the bundle is too large")

    def part(self) -> tuple[str, bytes]:
        """Return the name and the content of the next part."""
        name = self._said(LONGEST_NAME)
        content = self._said(SMALL)
        if content is None:
            content = _take(self._raw, self.number())
        self._names.append(_hash(content) if name is None else name)
        return self._names[-1].decode(), content

    def _said(self, most: int) -> bytes | None:
        """Return a name or a small content of at most so many bytes; None if it is not in pieces.

        The pieces are limited, because references to a long name could fill the memory.
        """
        found, count, room = list[bytes](), self.number(), min(most, self._room)
        for index in range(count):
            if index % 2 == 0:
                piece = _take(self._text, self.number())
            elif place := self.number():
                piece = self._names[place - 1]
            else:
                piece = _take(self._raw, _LETTERS // 2).hex().encode()
            room -= len(piece)
            if room < 0 or (index % 2 and len(piece) != _LETTERS):
                raise ValueError("the bundle holds more than is taken, or a name that is none")
            found.append(piece)
        self._room -= sum(map(len, found))
        return b"".join(found) if count else None

    def expect_end(self) -> None:
        """Raise `ValueError` unless the whole bundle has been read."""
        if self._numbers.read(1) or self._text.read(1) or self._raw.read(1):
            raise ValueError("the bundle is damaged: it has not the parts that it says")


def _take(stream: BytesIO, size: int) -> bytes:
    """Return the next `size` bytes. Raises `IndexError` if fewer are left."""
    found = stream.read(size)
    if len(found) < size:
        raise IndexError("it ends too early")
    return found


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _varints(numbers: Sequence[int]) -> bytes:
    made = bytearray()
    for number in numbers:
        while number > 127:
            made.append(number & 127 | 128)
            number >>= 7
        made.append(number)
    return bytes(made)


def _inflated(deflated: bytes) -> bytes:
    squeezed = zlib.decompressobj(wbits=-15, zdict=_WORDS)
    told = squeezed.decompress(deflated, MOST)
    if not squeezed.eof or squeezed.unused_data:
        raise ValueError(f"the bundle breaks off, or has over {MOST} bytes deflated")
    return told
