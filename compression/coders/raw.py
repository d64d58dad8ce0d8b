"""No coding."""

from dataclasses import dataclass
from typing import ClassVar

from ..base import Array, Buffer, Coder, PayloadError, Spec
from ..registry import register


@register("coder")
@dataclass(frozen=True)
class Raw(Coder):
    """Leave every stream as it is."""

    name: ClassVar[str] = "raw"
    id: ClassVar[int] = 0

    def encode(self, data: Array, spec: Spec) -> Buffer | None:
        """Return None."""
        return None

    @classmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Refuse: this coder codes nothing."""
        raise PayloadError("payload holds a coded stream where none can be")
