"""Reuses scratch arrays, because fresh memory costs more than most work done in it.

``x.abs()`` of 45 MB into fresh memory takes as long as nine copies, nearly all of it page faults.
Into memory that was used before it takes as long as one copy.
"""

import threading
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# Bytes of buffers per thread, at most: five vectors of ResNet18 (45 MB as float32), or one of
# AlexNet (244 MB). Memory beyond the limit returns to the system after use and faults in again.
LIMIT = 256 << 20

Scalar = TypeVar("Scalar", bound=np.generic)

_kept = threading.local()


def workspace(
    name: str, size: int, dtype: type[Scalar] | np.dtype[Scalar]
) -> np.ndarray[tuple[int], np.dtype[Scalar]]:
    """Return (size,) ``dtype``, a view of this thread's buffer of that name; contents undefined.

    The view is valid until the same thread asks for the same name again, with any dtype. So use it
    within one function, do not return it, and begin its name with the module's name.

    A buffer only grows, and untouched pages cost nothing: ask for the most that may be needed. If
    the buffers exceed LIMIT bytes in all, the least recently used ones are dropped. A single buffer
    larger than LIMIT is never stored. A view that a caller still holds stays valid.
    """
    kept = buffers()
    nbytes = size * np.dtype(dtype).itemsize
    buffer = kept.pop(name, None)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes, dtype=np.uint8)
        if nbytes > LIMIT:
            return buffer.view(dtype)
        while nbytes + sum(each.nbytes for each in kept.values()) > LIMIT:
            del kept[next(iter(kept))]
    kept[name] = buffer  # inserted last: the most recently used
    return buffer[:nbytes].view(dtype)


def buffers() -> dict[str, NDArray[np.uint8]]:
    """Return this thread's buffers by name, the least recently used first."""
    kept: dict[str, NDArray[np.uint8]] = _kept.__dict__.setdefault("buffers", {})
    return kept


def release() -> None:
    """Drop all buffers of this thread."""
    _kept.__dict__.clear()
