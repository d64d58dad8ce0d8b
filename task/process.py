"""What a process that trains asks of torch and of the C library, and what it spares itself."""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

KEPT = 1 << 30  # bytes of freed memory that a process keeps for what comes next
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)


def configure_process() -> None:
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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within, torch's optimisers are made without importing its compiler: that takes 2 s.

    `add_param_group` is wrapped in a request to the compiler to leave it alone, which nobody needs
    who compiles nothing.
    """
    wrapped = Optimizer.add_param_group
    Optimizer.add_param_group = inspect.unwrap(wrapped)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.add_param_group = wrapped  # type: ignore[method-assign]
