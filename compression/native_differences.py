"""Encodes native tensors as differences from values that sender and receiver both have.

The long form of a payload holds native tensors with names and shapes. This form needs neither,
because both ends have the layout. Its format is in docs/payload.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest

from .base import Array, Buffer, Kind, PayloadError, Spec
from .coders.entropy import Entropy
from .layout import Layout
from .wire import DIFFERENCES, Body, unpack
from .wire_natives import Declared, NativeTensor, decoded_natives, expected_natives, natives_bytes

Arrays = Mapping[str, NDArray[Any]]
_WORD = np.dtype("<u4")


def encode_differences(now: Arrays, before: Arrays, layout: Layout, common: bytes) -> bytes:
    """Encode the native tensors in `now` as differences from those in `before`.

    `before`: all tensors of `layout`, by name. `common`: a checksum of what both ends must have in
    common. Raises `PayloadError` for NaN.
    """
    listed = np.array([name in now for name in layout.names])
    _, tensors = expected_natives(layout, tuple(np.flatnonzero(listed).tolist()))
    change = (_words(tensors, now) - _words(tensors, before)).view(np.int32)
    words = ((change << 1) ^ (change >> 31)).view(_WORD)  # small for a small change of either sign
    coded = Entropy().encode(cast(Array, words), _spec(words)) or b""
    small = 0 < len(coded) < words.nbytes
    head = DIFFERENCES + np.packbits(listed).tobytes() + bytes((small,))
    payload = head + (coded if small else words.tobytes())
    return payload + xxh3_64_digest(payload + common)[:4]


def decode_differences(
    payload: Buffer, before: Arrays, layout: Layout, common: bytes
) -> tuple[NativeTensor, ...]:
    """Return the tensors that `encode_differences` encoded with the same last three arguments.

    Raises `PayloadError` for other bytes.
    """
    view, checksum = memoryview(payload)[:-4], memoryview(payload)[-4:]
    start = 2 + -(-len(layout) // 8)
    if len(view) < start or xxh3_64_digest(b"".join((view, common)))[:4] != checksum:
        raise PayloadError("native tensors are damaged, or for a node with other initial ones")
    listed = np.unpackbits(np.frombuffer(view[1 : start - 1], np.uint8))
    if listed[len(layout) :].any() or view[start - 1] > 1:
        raise PayloadError("native tensors come in an unknown coding")
    _, tensors = expected_natives(layout, tuple(np.flatnonzero(listed).tolist()))
    known = _words(tensors, before)
    words = unpack(Entropy, Body(view[start:], view[start - 1] == 1), _spec(known)).view(np.uint32)
    total = (known + ((words >> 1) ^ -(words & 1))).view(np.uint8)
    nbytes = sum(each.nbytes for each in tensors)
    if total[nbytes:].any():
        raise PayloadError("native tensors end in padding that is not zero")
    return decoded_natives(tensors, cast(Array, total[:nbytes]))


def _words(tensors: Sequence[Declared], arrays: Arrays) -> NDArray[np.uint32]:
    """Return the bytes of tensors as uint32, with zeros up to a multiple of 4 bytes."""
    raw = natives_bytes([NativeTensor(p, name, arrays[name]) for p, name, _, _ in tensors])
    return np.pad(raw, (0, -len(raw) % 4)).view(_WORD)


def _spec(words: NDArray[np.uint32]) -> Spec:
    return Spec(Kind.FLOATS, _WORD, len(words))  # as floats, they have zeros in the upper bytes
