"""Scratch arrays that are kept: fresh memory costs more than most work done in it.

A fresh ``x.abs()`` of 45 MB takes as long as nine copies, nearly all of it in page faults; in
memory that was touched before it takes one.
"""

import threading
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# Kept a thread, at most: five vectors of ResNet18 (45 MB as float32) or one of AlexNet (244 MB).
# Beyond it the system gets the memory back after use, and what is touched is paid for each time.
LIMIT = 256 << 20

Scalar = TypeVar("Scalar", bound=np.generic)

_kept = threading.local()


def workspace(
    name: str, size: int, dtype: type[Scalar] | np.dtype[Scalar]
) -> np.ndarray[tuple[int], np.dtype[Scalar]]:
    """Return (size,) ``dtype``, a view of this thread's buffer of that name; contents undefined.

    It is the caller's until the same thread asks for the same name again, with whatever dtype. So
    it is for use within a function and not returned from one, and names start with the module's.

    A buffer only grows, and pages of it that nobody touches cost nothing: ask for the most that
    may be needed. Of buffers of more than LIMIT bytes in all, those not asked for longest are given
    up, and one larger than that is never kept; a view that somebody still holds stays good.
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
    kept[name] = buffer  # as the last: the one most recently asked for
    return buffer[:nbytes].view(dtype)


def buffers() -> dict[str, NDArray[np.uint8]]:
    """Return this thread's buffers by name, the one not asked for longest first."""
    kept: dict[str, NDArray[np.uint8]] = _kept.__dict__.setdefault("buffers", {})
    return kept


def release() -> None:
    """Give up all buffers of this thread."""
    _kept.__dict__.clear()
