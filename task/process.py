"""What a process that trains asks of torch and of the C library, once."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

KEPT = 1 << 30  # bytes of freed memory that a process keeps for what comes next
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)


def settle() -> None:
    """One torch thread; freed memory is kept, up to `KEPT` bytes.

    glibc gives a large tensor's memory back to the system when it is freed, and the next mini-batch
    has to fault it in again, page by page: a third of a step for 25 MB of activations. Whoever has
    set glibc's own variables is left alone; other C libraries are, too.
    """
    torch.set_num_threads(1)
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or any(f"MALLOC_{name}_" in os.environ for name in ("TRIM_THRESHOLD", "MMAP_MAX")):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT)
        if not mallopt(_MMAP_THRESHOLD, KEPT):  # older ones take no more than 32 MB
            mallopt(_MMAP_MAX, 0)
