"""Deflate, the "standard Zip method" of the F2I paper (Edgify)."""

import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base import Array, Buffer, Coder, PayloadError, Spec
from ..registry import register


@register("coder")
@dataclass(frozen=True)
class Zip(Coder):
    """Compresses each stream (an array of a payload) to a zlib stream (RFC 1950) at level 6.

    The bytes are not reordered.
    """

    name: ClassVar[str] = "zip"
    id: ClassVar[int] = 1

    def encode(self, data: Array, spec: Spec) -> Buffer | None:
        """Compress a stream with Deflate."""
        return zlib.compress(data.data, 6)

    @classmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Decompress a stream; stop at one byte beyond the expected size."""
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(coded, spec.nbytes + 1)
        except zlib.error:
            raise PayloadError("payload holds a broken zlib stream") from None
        tail = inflater.unused_data or inflater.unconsumed_tail
        if not inflater.eof or tail or len(data) != spec.nbytes:
            raise PayloadError("payload holds a zlib stream of another length")
        return np.frombuffer(data, dtype=spec.dtype)
