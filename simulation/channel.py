"""Objects between processes: pickled small parts go through a pipe, large buffers through memory.

A pipe moves a large buffer in many small steps; memory that both processes map takes one copy in
and one out. The files live in /dev/shm where there is one and are gone when the run ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Array

LARGE = 1 << 15  # bytes from which on a buffer goes through memory


class _Pickler(pickle.Pickler):
    """Hands the bytes of large Arrays out of band, as numpy does with its own."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Array and len(obj.data) >= LARGE:
            return _array, (obj.dtype, obj.shape, obj.stype, pickle.PickleBuffer(obj.data))
        return NotImplemented


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: Any) -> Array:
    return Array(dtype, shape, stype, bytes(data))  # bytes(bytes) is no copy


class Shared:
    """One mapped file that grows with what is written to it; one process writes, one reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def write(self, buffers: list[memoryview]) -> list[int]:
        """Lay buffers end to end; return their sizes."""
        sizes = [view.nbytes for view in buffers]
        space = self._mapped(sum(sizes))
        position = 0
        for view, size in zip(buffers, sizes, strict=True):
            space[position : position + size] = view
            position += size
        return sizes

    def read(self, sizes: list[int]) -> list[bytes]:
        """Copy buffers of these sizes out."""
        space, position, buffers = self._mapped(sum(sizes)), 0, []
        for size in sizes:
            buffers.append(space[position : position + size])
            position += size
        return buffers

    def _mapped(self, size: int) -> mmap.mmap:
        size = max(size, 1 << 16)  # an empty file cannot be mapped
        if self._map is None or len(self._map) < size:
            with self._path.open("a+b") as file:
                if file.seek(0, os.SEEK_END) < size:
                    file.truncate(size + size // 4)
                self._map = mmap.mmap(file.fileno(), 0)
        return self._map


class Channel:
    """Sends and receives objects over a pipe and `slots` shared files, used in turn.

    A slot is written again only when its last content has been read: a sender may have at most
    `slots` objects unread, which is the worker's window.
    """

    def __init__(self, connection: Connection, folder: Path, name: str, slots: int) -> None:
        self._connection = connection
        self._shared = [Shared(folder / f"{name}-{i}") for i in range(slots)]
        self._turn = 0

    def _next(self) -> Shared:
        self._turn += 1
        return self._shared[self._turn % len(self._shared)]

    def send(self, obj: Any) -> None:
        """Send an object. Raises OSError if the other end is gone."""
        buffers: list[pickle.PickleBuffer] = []
        head = BytesIO()
        _Pickler(head, 5, buffer_callback=buffers.append).dump(obj)
        sizes = self._next().write([b.raw() for b in buffers])
        self._connection.send_bytes(pickle.dumps((sizes, head.getbuffer().tobytes())))

    def receive(self) -> Any:
        """Wait for an object. Raises EOFError or OSError if the other end is gone."""
        sizes, head = pickle.loads(self._connection.recv_bytes())
        return pickle.loads(head, buffers=self._next().read(sizes))


def shared_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder in memory where the system has one (/dev/shm)."""
    memory = "/dev/shm"
    return tempfile.TemporaryDirectory(
        prefix=f"edgewire-{os.getpid()}-", dir=memory if os.access(memory, os.W_OK) else None
    )
