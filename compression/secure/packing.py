"""Packs integers into 64-bit words, so that sums of words hold the sums of the integers.

A value from -most to most, plus most, is a digit of base 2 n most + 1, so the digits of n nodes add
up without a carry. Words are added modulo 2^64 and their lowest bytes are sent, which is addition
modulo 256^bytes. So a uniform mask hides a word perfectly, and needs no rejection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import PayloadError

Words = NDArray[np.uint64]  # (Packing.size,); += and -= wrap
WORD = np.dtype("<u8")


class Block(NamedTuple):
    """Values of one section, from ``start`` on, in words with equally many digits.

    The first values are the highest digits of all words, the next ones their second digits.
    ``width``: the bytes of a word that are sent.
    """

    section: int
    start: int
    digits: int
    words: int
    width: int


class Packing:
    """The places of values in words and in bytes.

    ``sections``: (count, most) each. ``nodes``: how many nodes' words are added at most. ``size``:
    words. ``nbytes``: bytes sent. Raises PayloadError if the sum of a value needs over 62 bits.
    """

    def __init__(self, sections: Sequence[tuple[int, int]], nodes: int) -> None:
        self._sections = sections
        self._bases = [2 * nodes * most + 1 for _, most in sections]
        if any(most < 1 for _, most in sections) or max(self._bases, default=0) >> 63:
            raise PayloadError(
                f"magnitudes to sum over {nodes} nodes are from 1 to {2**62 // nodes}"
            )
        counts = [count for count, _ in sections]
        self._blocks = [b for i, c in enumerate(counts) for b in _blocks(i, c, self._bases[i])]
        self.size = sum(block.words for block in self._blocks)
        self.nbytes = sum(block.words * block.width for block in self._blocks)

    def words(self, values: Sequence[NDArray[Any]]) -> Words:
        """Return the words of one node: of an array of integers (count,) for each section.

        Raises PayloadError for other types, shapes or magnitudes.
        """
        if [each.shape for each in values] != [(count,) for count, _ in self._sections]:
            raise PayloadError("the values to sum have other sizes than the round's sections")
        for (_, most), each in zip(self._sections, values, strict=True):
            whole = each.dtype.kind in "iu"
            if not whole or (each.size and max(-int(each.min()), int(each.max())) > most):
                raise PayloadError(f"a value to sum is no integer from -{most} to {most}")
        digits = [
            np.add(each, most, dtype=np.int64, casting="unsafe").view(np.uint64)
            for (_, most), each in zip(self._sections, values, strict=True)
        ]
        words = np.empty(self.size, WORD)
        for block, packed in self._cut(words):
            rows = _rows(digits[block.section], block)
            packed[:] = rows[0]
            for row in rows[1:]:
                packed *= np.uint64(self._bases[block.section])
                packed += row
        return words

    def totals(self, words: Words, summands: int) -> list[NDArray[np.int64]]:
        """Return for each section the sums (count,) of ``summands`` nodes' values.

        Raises PayloadError if no values of so many nodes have these sums.
        """
        sums = [np.empty(count, np.int64) for count, _ in self._sections]
        valid = True
        for block, packed in self._cut(words):
            base = np.uint64(self._bases[block.section])
            rest = packed & np.uint64(256**block.width - 1)
            for row in _rows(sums[block.section], block)[::-1]:
                quotient = rest // base
                row[:] = rest - quotient * base
                rest = quotient
            valid &= not rest.any()
        for (_, most), each in zip(self._sections, sums, strict=True):
            each -= summands * most
            valid &= not each.size or bool(each.max() <= summands * most)
        if not valid:
            raise PayloadError("the sum is impossible: a node sent a wrong update or wrong shares")
        return sums

    def to_bytes(self, words: Words) -> bytes:
        """Return the bytes that are sent: the lowest ones of each word, little-endian."""
        return b"".join(_octets(part, block).tobytes() for block, part in self._cut(words))

    def from_bytes(self, data: bytes) -> Words:
        """Return the words of bytes that were sent; raises PayloadError for a wrong length."""
        if not isinstance(data, bytes) or len(data) != self.nbytes:
            raise PayloadError(f"a masked update has {self.nbytes} bytes in this round")
        words, at = np.zeros(self.size, WORD), 0
        for block, part in self._cut(words):
            octets = _octets(part, block)
            octets[:] = np.frombuffer(data, np.uint8, octets.size, at).reshape(octets.shape)
            at += octets.size
        return words

    def _cut(self, words: Words) -> Iterator[tuple[Block, Words]]:
        at = 0
        for block in self._blocks:
            yield block, words[at : at + block.words]
            at += block.words


def _blocks(section: int, count: int, base: int) -> Iterator[Block]:
    """Yield a block of full words in the best width, and one with the values that are left."""
    fits = [(width, _digits(base, width)) for width in range(1, 9)]
    # Of equally good widths the largest: it is 5 or more, so words of 64 bits waste little time.
    width, digits = min((f for f in fits if f[1]), key=lambda f: (Fraction(*f), -f[0]))
    full, left = divmod(count, digits)
    if full:
        yield Block(section, 0, digits, full, width)
    if left:
        yield Block(section, full * digits, left, 1, -(-(base**left - 1).bit_length() // 8))


def _digits(base: int, width: int) -> int:
    """Return how many digits fit into ``width`` bytes."""
    return next(d for d in range(99) if base ** (d + 1) > 256**width)


def _rows(values: NDArray[Any], block: Block) -> NDArray[Any]:
    """Return a block's values as a view (digits, words)."""
    end = block.start + block.digits * block.words
    return values[block.start : end].reshape(block.digits, block.words)


def _octets(words: Words, block: Block) -> NDArray[np.uint8]:
    """Return the bytes of a block that are sent, as a view (words, width)."""
    return words.view(np.uint8).reshape(-1, 8)[:, : block.width]
