"""Packs several small levels into one byte, as nibbles or base-3 digits; the first is lowest."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..base import PayloadError

Bytes = NDArray[np.uint8]
Levels = NDArray[np.int8]

TRITS = 5  # base-3 digits in a byte: 3^5 = 243
_AT_ONCE = 13_107  # packed bytes per block; their 65,535 levels fit into the cache


def pack_nibbles(levels: Levels) -> Bytes:
    """Pack (m,) int8 levels in [-8, 7] in two's complement, two per byte; m is even."""
    pairs = levels.view("<u2") & 0x0F0F
    pairs |= pairs >> 4
    return pairs.astype(np.uint8)


def unpack_nibbles(packed: Bytes) -> Levels:
    """Return the (2m,) int8 levels in (m,) bytes that `pack_nibbles` made."""
    pairs = packed.astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    levels = pairs.view(np.int8)
    levels ^= 8  # 8 to 15 represent -8 to -1
    levels -= 8
    return levels


def pack_trits(levels: Levels) -> Bytes:
    """Pack (m,) levels in {-1, 0, 1}, five per byte; return (m / 5 rounded up,) uint8 below 243.

    A byte is the sum of (level_j + 1) 3^j over its five levels j. Levels 0 pad the last byte.
    """
    packed = np.empty(-(-len(levels) // TRITS), dtype=np.uint8)
    for start in range(0, len(packed), _AT_ONCE):
        here = packed[start : start + _AT_ONCE]
        part = levels[start * TRITS : (start + len(here)) * TRITS]
        if len(part) < TRITS * len(here):
            part = np.append(part, np.zeros(TRITS * len(here) - len(part), dtype=np.int8))
        digits = part.view(np.uint8).reshape(-1, TRITS)
        here[:] = digits[:, TRITS - 1]
        for place in range(TRITS - 2, -1, -1):
            here *= 3
            here += digits[:, place]
        # A level of -1 is 255 as uint8, and all sums are modulo 256. 121 = 1 + 3 + 9 + 27 + 81 adds
        # the 1 of each (level + 1).
        here += 121
    return packed


def unpack_trits(packed: Bytes, count: int) -> Levels:
    """Return the first (count,) int8 levels in bytes that `pack_trits` made.

    Raises PayloadError for bytes that `pack_trits` never makes.
    """
    if len(packed) and packed.max() >= 3**TRITS:
        raise PayloadError("payload holds a byte that is not five base-3 digits")
    table = _trits()
    levels = np.empty((len(packed), TRITS), dtype=np.int8)
    for start in range(0, len(packed), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        np.take(table, packed[part], axis=0, out=levels[part], mode="clip")
    found = levels.reshape(-1)
    if found[count:].any():
        raise PayloadError("payload holds padding that is not 0")
    return found[:count]


def check_padding(packed: Bytes, count: int, bits: int) -> None:
    """Raise PayloadError unless all bits after the first ``count`` levels are 0.

    ``bits``: bits per level, 1, 2 or 4.
    """
    used = count * bits % 8
    if used and packed[-1] >> used:
        raise PayloadError("payload holds padding that is not 0")


@cache
def _trits() -> Levels:
    """Return the five levels of each of the 243 possible bytes, (243, 5) int8."""
    digits = np.arange(3**TRITS)[:, None] // 3 ** np.arange(TRITS) % 3
    return (digits - 1).astype(np.int8)
