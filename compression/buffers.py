"""Reuses temporary arrays, because the first use of new memory takes more time than most work.

``x.abs()`` of 45 MB, written to new memory, takes as long as nine copies, mostly because of page
faults. Written to memory that was used before, ``x.abs()`` takes as long as one copy.
"""

import threading
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# The most bytes of buffers per thread: enough for five vectors of ResNet18 (45 MB as float32) or
# one of AlexNet (244 MB). Memory beyond the limit is returned to the system. The next use of memory
# then causes page faults again.
LIMIT = 256 << 20

Scalar = TypeVar("Scalar", bound=np.generic)

_kept = threading.local()


def workspace(
    name: str, size: int, dtype: type[Scalar] | np.dtype[Scalar]
) -> np.ndarray[tuple[int], np.dtype[Scalar]]:
    """Return an array (size,) of ``dtype`` with undefined contents, a view of a named buffer.

    Each thread has its own buffers. The view may be overwritten when the same thread asks for the
    same name again, with any dtype. So use the view within one function, do not return it, and
    begin its name with the module's name.

    A buffer never shrinks, and pages that are not touched cost nothing. So ask for the largest size
    that may be needed. If a thread's buffers exceed LIMIT bytes together, the least recently used
    ones are deleted. A single buffer larger than LIMIT is never stored. A caller may still use its
    view of a deleted buffer.
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
