"""Packs integers into 64-bit words, so that sums of words hold the sums of the integers.

A value from -most to most, plus most, is a digit of base 2 n most + 1, so the digits of n nodes add
up without a carry. Words are added modulo 2^64 and their lowest bytes are sent, which is addition
modulo 256^bytes. So a uniform mask hides a word perfectly, and needs no rejection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import PayloadError

Words = NDArray[np.uint64]  # (Packing.size,); += and -= wrap
WORD = np.dtype("<u8")


class Section(NamedTuple):
    """Values of one magnitude, which fill an array (digits, words) row by row.

    A column is a word, its highest digit first. The last places may be without a value. ``width``:
    the bytes of a word that are sent.
    """

    length: int  # values
    most: int
    base: int
    digits: int
    words: int
    width: int


class Packing:
    """The places of values in words and in bytes.

    ``sections``: (count, most) each. ``nodes``: how many nodes' words are added at most. ``size``:
    words. ``nbytes``: bytes sent. Raises PayloadError if the sum of a value needs over 62 bits.
    """

    def __init__(self, sections: Sequence[tuple[int, int]], nodes: int) -> None:
        self._sections = [_section(count, most, 2 * nodes * most + 1) for count, most in sections]
        self.size = sum(each.words for each in self._sections)
        self.nbytes = sum(each.words * each.width for each in self._sections)

    def words(self, values: Sequence[NDArray[Any]]) -> Words:
        """Return the words of one node: of an array of integers (count,) for each section.

        Raises PayloadError for other types, shapes or magnitudes.
        """
        if [each.shape for each in values] != [(each.length,) for each in self._sections]:
            raise PayloadError("the values to sum have other sizes than the round's sections")
        words = np.zeros(self.size, WORD)
        for (section, packed), each in zip(self._cut(words), values, strict=True):
            integers, most = each.dtype.kind in "iu", section.most
            if not integers or max(-int(each.min(initial=0)), int(each.max(initial=0))) > most:
                raise PayloadError(f"a value to sum is no integer from -{most} to {most}")
            digits = np.zeros(section.digits * section.words, np.int64)
            np.add(each.astype(np.int64), most, out=digits[: section.length])
            for row in digits.view(np.uint64).reshape(section.digits, -1):
                packed *= np.uint64(section.base)
                packed += row
        return words

    def totals(self, words: Words, summands: int) -> list[NDArray[np.int64]]:
        """Return for each section the sums (count,) of ``summands`` nodes' values.

        Raises PayloadError if no values of so many nodes have these sums.
        """
        sums, valid = list[NDArray[np.int64]](), True
        for section, packed in self._cut(words):
            digits = np.empty((section.digits, section.words), np.int64)
            rest = packed & np.uint64(256**section.width - 1)
            for row in digits[::-1]:
                quotient = rest // np.uint64(section.base)
                row[:] = rest - quotient * np.uint64(section.base)
                rest = quotient
            each, beyond = np.split(digits.reshape(-1), [section.length])
            most = summands * section.most
            valid &= not (rest.any() or beyond.any()) and int(each.max(initial=0)) <= 2 * most
            sums.append(each - most)
        if not valid:
            raise PayloadError("the sum is impossible: a node sent a wrong update or wrong shares")
        return sums

    def to_bytes(self, words: Words) -> bytes:
        """Return the bytes that are sent: the lowest ones of each word, little-endian."""
        return b"".join(_octets(part, each.width).tobytes() for each, part in self._cut(words))

    def from_bytes(self, data: bytes) -> Words:
        """Return the words of bytes that were sent; raises PayloadError for a wrong length."""
        if not isinstance(data, bytes) or len(data) != self.nbytes:
            raise PayloadError(f"a masked update has {self.nbytes} bytes in this round")
        words, at = np.zeros(self.size, WORD), 0
        for section, part in self._cut(words):
            octets = _octets(part, section.width)
            octets[:] = np.frombuffer(data, np.uint8, octets.size, at).reshape(octets.shape)
            at += octets.size
        return words

    def _cut(self, words: Words) -> Iterator[tuple[Section, Words]]:
        at = 0
        for section in self._sections:
            yield section, words[at : at + section.words]
            at += section.words


def _section(count: int, most: int, base: int) -> Section:
    if count < 0 or most < 1 or base >> 63:
        raise PayloadError(f"{count} values up to {most}: a sum must have from 1 to 62 bits")
    digits = [next(d for d in range(99) if base ** (d + 1) > 256**w) for w in range(1, 9)]
    fits = [(d, -(-count // d), w) for w, d in enumerate(digits, 1) if d]
    # The fewest bytes; many more words for a byte less would take too long.
    return Section(count, most, base, *min(fits, key=lambda fit: fit[1] * (fit[2] + 0.01)))


def _octets(words: Words, width: int) -> NDArray[np.uint8]:
    """Return the bytes that are sent, as a view (words, width)."""
    return words.view(np.uint8).reshape(-1, 8)[:, :width]
