"""Packs integers into 64-bit words, so that sums of words are the words of the sums.

A value from -most to most, plus most, is a digit of base 2 n most + 1. So digits of n nodes add up
without a carry. The words are added modulo 2^64, and only their lowest bytes are sent: adding
modulo 2^64 and then taking the lowest bytes is adding modulo 256^bytes. So a mask is uniform
without rejection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import PayloadError

Words = NDArray[np.uint64]  # (Packing.size,), little-endian; += and -= wrap
WORD = np.dtype("<u8")


class Block(NamedTuple):
    """Words with equally many digits; the first digits of all words come first, the lowest last."""

    digits: int  # in a word
    words: int
    width: int  # bytes of a word that are sent


class Section(NamedTuple):
    """Values with one largest magnitude: whole words, and one word with the values left over."""

    count: int
    most: int
    base: int
    blocks: tuple[Block, ...]


class Packing:
    """Where each value is in the words and in the bytes.

    ``sections``: (count, most) each; ``nodes``: how many nodes' words are added at most. ``size``:
    words. ``nbytes``: bytes sent. Raises PayloadError if the sum of a value needs over 63 bits.
    """

    def __init__(self, sections: Sequence[tuple[int, int]], nodes: int) -> None:
        self._sections = [_section(count, most, nodes) for count, most in sections]
        self._blocks = [block for each in self._sections for block in each.blocks]
        self._nodes = nodes
        self.size = sum(block.words for block in self._blocks)
        self.nbytes = sum(block.words * block.width for block in self._blocks)

    def words(self, values: Sequence[NDArray[Any]]) -> Words:
        """Return the words of one node's values: an array of integers (count,) for each section.

        Raises PayloadError for other shapes, types or magnitudes.
        """
        if len(values) != len(self._sections):
            raise PayloadError(f"{len(self._sections)} sections are summed, not {len(values)}")
        words, at = np.empty(self.size, dtype=WORD), 0
        for section, given in zip(self._sections, values, strict=True):
            array = np.asarray(given)
            if array.shape != (section.count,) or array.dtype.kind not in "iu":
                raise PayloadError(
                    f"a section has {section.count} integers, not {array.shape} {array.dtype}"
                )
            if array.size and not -section.most <= int(array.min()) <= array.max() <= section.most:
                raise PayloadError(f"a value to be summed is beyond {section.most}")
            digits = np.add(array, section.most, dtype=np.int64, casting="unsafe").view(np.uint64)
            for block, rows in _rows(section, digits):
                packed = words[at : at + block.words]
                packed[:] = rows[0]
                for row in rows[1:]:
                    packed *= np.uint64(section.base)
                    packed += row
                at += block.words
        return words

    def totals(self, words: Words, summands: int) -> list[NDArray[np.int64]]:
        """Return for each section the sums (count,) of ``summands`` nodes' values.

        Raises PayloadError if no values of so many nodes have these sums.
        """
        found, at = [], 0
        for section in self._sections:
            sums = np.empty(section.count, dtype=np.int64)
            for block, rows in _rows(section, sums):
                rest = words[at : at + block.words] & np.uint64(256**block.width - 1)
                for row in rows[::-1]:
                    quotient = rest // np.uint64(section.base)
                    row[:] = rest - quotient * np.uint64(section.base)
                    rest = quotient
                if rest.any():
                    raise PayloadError(_IMPOSSIBLE)
                at += block.words
            if sums.size and sums.max() > 2 * summands * section.most:
                raise PayloadError(_IMPOSSIBLE)
            sums -= summands * section.most
            found.append(sums)
        return found

    def to_bytes(self, words: Words) -> bytes:
        """Return the bytes that are sent: the lowest ones of each word, little-endian."""
        return b"".join(part.tobytes() for part in self._parts(words))

    def from_bytes(self, data: bytes) -> Words:
        """Return the words of bytes that a node sent; raises PayloadError for a wrong length."""
        if not isinstance(data, bytes) or len(data) != self.nbytes:
            raise PayloadError(f"a masked update must have {self.nbytes} bytes")
        words, at = np.zeros(self.size, dtype=WORD), 0
        for part in self._parts(words):
            part[:] = np.frombuffer(data, np.uint8, part.size, at).reshape(part.shape)
            at += part.size
        return words

    def _parts(self, words: Words) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes that are sent of each block's words, as views (words, width)."""
        octets, at = words.view(np.uint8).reshape(-1, 8), 0
        for block in self._blocks:
            yield octets[at : at + block.words, : block.width]
            at += block.words


_IMPOSSIBLE = (
    "the sum is not one of valid updates: a node sent a wrong masked update or wrong shares"
)


def _section(count: int, most: int, nodes: int) -> Section:
    base = 2 * nodes * most + 1
    if count < 0 or most < 1 or base >= 1 << 63:
        raise PayloadError(
            f"{count} values up to {most} of {nodes} nodes cannot be summed: magnitudes are from 1,"
            " and sums below 2^62"
        )
    # Words of 1 to 4 bytes are never better than words of twice that, which are faster.
    fits = [(_digits(base, width), width) for width in range(1, 9)]
    digits, width = min((f for f in fits if f[0]), key=lambda f: (Fraction(f[1], f[0]), -f[1]))
    left = count % digits
    blocks = [Block(digits, count // digits, width)] if count >= digits else []
    if left:
        blocks.append(Block(left, 1, ((base**left - 1).bit_length() + 7) // 8))
    return Section(count, most, base, tuple(blocks))


def _digits(base: int, width: int) -> int:
    """Return how many digits fit into ``width`` bytes."""
    digits = 0
    while base ** (digits + 1) <= 256**width:
        digits += 1
    return digits


def _rows(section: Section, values: NDArray[Any]) -> Iterator[tuple[Block, NDArray[Any]]]:
    """Yield each block and its part of the values, as a view (digits, words)."""
    at = 0
    for block in section.blocks:
        end = at + block.digits * block.words
        yield block, values[at:end].reshape(block.digits, block.words)
        at = end
