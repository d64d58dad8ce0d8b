"""No coding: streams stay uncompressed."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Array, Buffer, Coder, PayloadError, Spec
from ..registry import register


@register("coder")
@dataclass(frozen=True)
class Raw(Coder):
    """Sends every stream uncompressed."""

    name: ClassVar[str] = "raw"
    id: ClassVar[int] = 0

    def encode(self, data: Array, spec: Spec) -> Buffer | None:
        """Return None: the stream is sent uncompressed."""
        return None

    @classmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Raise PayloadError, because this coder never compresses a stream."""
        raise PayloadError("payload holds a coded stream where none can be")
