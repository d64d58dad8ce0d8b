"""Settings of torch and the C library for a process that trains."""

import ctypes
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

KEPT = 1 << 30  # bytes of freed memory that a process keeps for later allocations
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)


_before: list[int] = []  # torch's numbers of threads before `configure_process`


def configure_process() -> None:
    """Set torch to one thread, and glibc to keep up to `KEPT` bytes of freed memory.

    By default glibc returns a large tensor's memory to the system at once. The next mini-batch gets
    it back page by page, which takes a third of a step for 25 MB of activations. If the user has
    set glibc's environment variables, its settings stay unchanged. Other C libraries stay unchanged
    too.
    """
    _before.append(torch.get_num_threads())
    torch.set_num_threads(1)
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or any(f"MALLOC_{name}_" in os.environ for name in ("TRIM_THRESHOLD", "MMAP_MAX")):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT)
        if not mallopt(_MMAP_THRESHOLD, KEPT):  # older versions accept at most 32 MB
            mallopt(_MMAP_MAX, 0)


def release_process() -> None:
    """Set torch to the number of threads that it had before the first `configure_process`."""
    if _before:
        torch.set_num_threads(_before[0])
        _before.clear()


@contextmanager
def uncompiled() -> Iterator[None]:
    """In this context, make torch's optimisers without an import of torch's compiler (2 seconds).

    torch wraps `add_param_group` in a call that excludes it from compilation. A process that does
    not compile does not need the wrapper.
    """
    wrapped = Optimizer.add_param_group
    Optimizer.add_param_group = inspect.unwrap(wrapped)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.add_param_group = wrapped  # type: ignore[method-assign]
